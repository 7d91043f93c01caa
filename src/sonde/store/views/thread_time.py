"""The view python.thread_time: what the time of each thread went to, by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sonde.session import Session, stack_table
from sonde.session.schema import make_schema
from sonde.store.rows import arrow_schema, read_columns
from sonde.store.view import Row, view_of_rows
from sonde.store.views.stacks import find_chains, find_names
from sonde.store.wait_kinds import CPU, CPU_QUEUE, OTHER, refine_wait
from sonde.tables import name_row
from sonde.tables.stack import StackSample

_KEYS = ["thread", "stack", "idle", "wait"]
_SUMS = ["samples", "wall_ns", "cpu_ns", "queue_ns"]


def _list_times(session: Session) -> Iterator[Row]:
    rows, names = _add_up(session), find_names(session)
    chains = find_chains(session, {row["stack"] for row in rows})
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        frames = chains.get(row["stack"], [])
        leaf = frames[0].values() if frames else ("?", "", 0)
        for kind, part_ns in _split(row, frames):
            sums = found.setdefault((row["thread"], kind, *leaf), [0, 0])
            sums[0] += row["samples"]
            sums[1] += part_ns
    for (thread, kind, func, file, line), (samples, wall_ns) in found.items():
        yield {
            "thread": thread, "name": names.get(thread), "kind": kind, "wall_ns": wall_ns,
            "samples": samples, "func": func, "file": file, "lineno": line,
        }  # fmt: skip


def _split(
    row: Mapping[str, Any], frames: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, int]]:
    """Yield what the time of some samples went to; the parts add up to all of it.

    Samples say how much of a thread's time was work. How much of that it had a CPU and how much it
    waited for one, two clocks of the kernel say."""
    if row["idle"]:
        places = ((frame["func"], frame["file"]) for frame in frames)
        yield refine_wait(row["wait"], places), row["wall_ns"]
        return
    wall_ns, cpu_ns, queue_ns = row["wall_ns"], row["cpu_ns"], row["queue_ns"]
    known = queue_ns is not None
    whole = cpu_ns + queue_ns if known else max(cpu_ns, wall_ns)
    worked_ns = round(wall_ns * cpu_ns / whole) if whole else 0
    if worked_ns:
        yield CPU, worked_ns
    if wall_ns > worked_ns:
        yield CPU_QUEUE if known else OTHER, wall_ns - worked_ns


def _add_up(session: Session) -> list[dict[str, Any]]:
    """Return the sums of all samples that are kept, by thread, stack and state."""
    wanted = arrow_schema(make_schema(StackSample, name_row(StackSample), "process"))
    wanted = pa.schema([wanted.field(name) for name in (*_KEYS, *_SUMS)])
    whole = read_columns(session, stack_table.SAMPLES, wanted)
    sums = whole.group_by(_KEYS).aggregate([(name, "sum") for name in _SUMS])
    return [
        {key.removesuffix("_sum"): value for key, value in row.items()} for row in sums.to_pylist()
    ]


THREAD_TIME = view_of_rows(
    "python.thread_time",
    "What the time of each thread went to, by line; the times of a thread add up to all of it.",
    _list_times,
    ("thread", "i64", "", "kernel thread id"),
    ("name", "text", "", "name of the thread in Python"),
    ("kind", "text", "", "cpu; cpu_queue: it could run, but had no CPU; or a wait: gil, lock, "
     "queue, sleep, poll, network, pipe (also a local socket), child, disk, fault (memory that was "
     "not there), device, other"),
    ("wall_ns", "i64", "ns", "elapsed time, sampled"),
    ("samples", "i64", "", "samples that found it there; those of work count for both of cpu and "
     "cpu_queue"),
    ("func", "text", "", "innermost function of Python"),
    ("file", "text", "", "file of the function"),
    ("lineno", "i64", "", "the line that ran, or called"),
    from_tables=True,
)  # fmt: skip
VIEWS = (THREAD_TIME,)
