"""Samples of stacks, and rows of other tables, made by hand for one rule: the engine and the rule's
query are real."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import duckdb
import pyarrow as pa

from sonde.advice.verdict import Limits, Verdict
from sonde.store import catalog
from sonde.store.rows import arrow_schema
from support.handmade_stacks import FRAME

Stack = Sequence[tuple[str, str]]  # functions with their files, root first


class Sample(NamedTuple):
    """What a thread did for so many seconds: waited, if a kind of wait is given, or worked."""

    thread: int
    stack: int  # the number of one of the stacks
    wall_s: float
    wait: str | None = None
    call: str | None = None
    pid: int = 7
    end_s: float = 0.0
    is_idle: bool | None = None  # if not as `wait` says


def make_limits(rule: ModuleType) -> Limits:
    """Return the limits of a rule, as they are by default."""
    return Limits({name: limit.default for name, limit in rule.LIMITS.items()})


def judge_samples(
    rule: ModuleType, stacks: Iterable[Stack], samples: Iterable[Sample], **words: str
) -> Verdict:
    """Return what a rule says about one piece. The function at depth 1 of stack 2 is at line 21."""
    limits = make_limits(rule)
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
            "CREATE TABLE python.stack_sample(host TEXT, pid INT, thread INT, stack INT, call TEXT,"
            " gil BOOL, idle BOOL, wait TEXT, t_ns BIGINT, wall_ns BIGINT, cpu_ns BIGINT,"
            " queue_ns BIGINT, samples INT)"
        )
        for stack, frames in enumerate(stacks):
            for depth, (func, file) in enumerate(reversed(frames)):
                row = [stack, depth, func, file, 10 * stack + depth]
                connection.execute("INSERT INTO python.frame VALUES (?, ?, ?, ?, ?)", row)
        for one in samples:
            is_idle = one.wait is not None if one.is_idle is None else one.is_idle
            connection.execute(
                "INSERT INTO python.stack_sample VALUES"
                " ('alpha', ?, ?, ?, ?, FALSE, ?, ?, ?, ?, 0, 0, 100)",
                [one.pid, one.thread, one.stack, one.call, is_idle, one.wait,
                 round(one.end_s * 1e9), round(one.wall_s * 1e9)],
            )  # fmt: skip
        found = connection.execute(
            rule.SQL.format(**{"piece": "0", "inside": "TRUE"} | words, **limits)
        )
        make = namedtuple("Found", [column[0] for column in found.description])
        verdicts = list(rule.judge([make(*row) for row in found.fetchall()], limits))
    assert len(verdicts) <= 1, "all samples are in one piece"
    return verdicts[0] if verdicts else Verdict(0, False)


def judge_rows(
    rule: ModuleType, tables: Mapping[str, Iterable[Mapping[str, object]]]
) -> list[Verdict]:
    """Return what a rule says of rows of tables, by the names of their columns; all of them are in
    one piece. What is left out of a row is NULL, and what is left out of `tables` is empty."""
    limits = make_limits(rule)
    schemas = {schema.table: arrow_schema(schema) for schema in catalog.list_recorded()}
    schemas["python.frame"] = FRAME
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA python; CREATE SCHEMA sonde")
        for name, schema in schemas.items():
            if name in rule.SQL:
                rows = [{"host": "alpha", "pid": 7, **row} for row in tables.get(name, ())]
                table = pa.Table.from_pylist(rows, schema=schema)
                connection.register("rows", table)
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
        found = connection.execute(
            rule.SQL.format(piece="0", inside="TRUE", main_step="TRUE", piece_s=10.0, **limits)
        )
        make = namedtuple("Found", [column[0] for column in found.description])
        return list(rule.judge([make(*row) for row in found.fetchall()], limits))
