"""Exact counts and times of calls."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32


class Call:
    """A function, or who called it how often, since the source was switched on; newest row counts.

    A row without caller columns is all of a function; one with them is its part of it."""

    RING_BYTES = 16 * 2**20
    t_ns: i64 = column("when it was published", "ns")
    publication: u32 = column("which publication; see call_publication")
    func: text = column("name; of a builtin as cProfile spells it")
    file: text = column("source file; ~ for a builtin")
    lineno: u32 = column("its first line; 0 for a builtin")
    caller: text | None = column("who called it; NULL: the sum over all callers")
    caller_file: text | None = column("the caller's file")
    caller_lineno: u32 | None = column("the caller's first line")
    calls: i64 = column("calls, with those still under way; a coroutine's is one")
    primitive_calls: i64 = column("calls that were not inside another call of the same")
    own_ns: i64 = column("time in it, without what it called", "ns")
    total_ns: i64 = column("time in it and what it called; a coroutine's with awaiting", "ns")


class CallPublication:
    """A publication of python.call that is complete."""

    RING_BYTES = 256 * 1024
    t_ns: i64 = column("when", "ns")
    publication: u32 = column("its number in this process")
    first: u32 = column("the first since the source was switched on; older rows are of another run")
    rows: i64 = column("rows that changed since the one before")


ROWS = (Call, CallPublication)
