"""Operators of PyTorch."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u16


class Operator:
    """One call of an operator of PyTorch, while sonde.profiler runs or source.operator is on."""

    t_ns: i64 = column("start", "ns")
    dur_ns: i64 = column("host time, including the operators that it called", "ns")
    self_ns: i64 = column("host time, excluding the operators that it called", "ns")
    thread: i64 = column("kernel thread id")
    op: text = column("name of the operator: aten::mm; of a node of a backward pass: MmBackward0")
    depth: u16 = column("nesting depth; 0 was not called by another operator")
    backward: bool = column("it was part of a backward pass")


ROWS = (Operator,)
