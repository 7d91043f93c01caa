"""The view python.thread_time: what the time of each thread went to, by line."""

from __future__ import annotations

from collections import Counter
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


_Leaf = tuple[Any, ...]
_Chains = Mapping[Any, Sequence[Mapping[str, Any]]]


def _list_times(session: Session) -> Iterator[Row]:
    rows, names = _add_up(session), find_names(session)
    chains: _Chains = find_chains(session, {row["stack"] for row in rows})
    leaves = {stack: tuple(frames[0].values()) for stack, frames in chains.items() if frames}
    unseen, waits = _find_unseen(rows), _find_waits(rows, chains, leaves)
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        thread, stack = row["thread"], row["stack"]
        leaf = leaves.get(stack, ("?", "", 0))
        short_ns = round(_excess(row) * unseen.get(thread, 0))
        parts = [
            (waits.get((thread, leaf)) or waits.get((thread, leaf[:2]), OTHER), 0, short_ns),
            *_split(row, chains.get(stack, []), row["wall_ns"] - short_ns),
        ]
        for kind, samples, part_ns in parts:
            if part_ns or samples:
                sums = found.setdefault((thread, kind, *leaf), [0, 0])
                sums[0] += samples
                sums[1] += part_ns
    for (thread, kind, func, file, line), (samples, wall_ns) in found.items():
        yield {
            "thread": thread, "name": names.get(thread), "kind": kind, "wall_ns": wall_ns,
            "samples": samples, "func": func, "file": file, "lineno": line,
        }  # fmt: skip


def _split(
    row: Mapping[str, Any], frames: Sequence[Mapping[str, Any]], wall_ns: int
) -> Iterator[tuple[str, int, int]]:
    """Yield what the time of some samples went to, with their number; the parts add up to it.

    Samples say how much of a thread's time was work. How much of that it had a CPU and how much it
    waited for one, two clocks of the kernel say."""
    if row["idle"]:
        yield _name_wait(row, frames), row["samples"], wall_ns
        return
    cpu_ns, queue_ns = row["cpu_ns"], row["queue_ns"]
    known = queue_ns is not None
    whole = cpu_ns + queue_ns if known else max(cpu_ns, wall_ns)
    worked_ns = round(wall_ns * cpu_ns / whole) if whole else 0
    if worked_ns:
        yield CPU, row["samples"], worked_ns
    if wall_ns > worked_ns:
        yield CPU_QUEUE if known else OTHER, row["samples"], wall_ns - worked_ns


def _name_wait(row: Mapping[str, Any], frames: Sequence[Mapping[str, Any]]) -> str:
    return refine_wait(row["wait"], ((frame["func"], frame["file"]) for frame in frames))


def _excess(row: Mapping[str, Any]) -> int:
    """Return by how much the time of samples of work is longer than the kernel's clocks say."""
    if row["idle"] or row["queue_ns"] is None:
        return 0
    return max(0, int(row["wall_ns"]) - int(row["cpu_ns"]) - int(row["queue_ns"]))


def _find_unseen(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return which part of the excess of each thread was waits that its samples did not see.

    A wait of 20 us is often over when a sample asks what it is. All waits of a thread are what its
    clocks leave of its time, except for chance: half a sample or so for each change to and from
    work, which is less than the square root of the number of samples."""
    sums: dict[int, list[int]] = {}
    for row in rows:
        if not row["idle"] and row["queue_ns"] is not None:
            clocks_ns = row["cpu_ns"] + row["queue_ns"]
            now = (row["samples"], row["wall_ns"], row["wall_ns"] - clocks_ns, _excess(row))
            before = sums.get(row["thread"], [0] * len(now))
            sums[row["thread"]] = [a + b for a, b in zip(before, now, strict=True)]
    return {
        thread: left_ns / excess_ns
        for thread, (samples, wall_ns, left_ns, excess_ns) in sums.items()
        if samples and left_ns > wall_ns / samples**0.5
    }


def _find_waits(
    rows: Sequence[Mapping[str, Any]],
    chains: _Chains,
    leaves: Mapping[Any, _Leaf],
) -> dict[tuple[int, _Leaf], str]:
    """Return what each thread was seen to wait for most at each line and in each function: what was
    not seen there is the same."""
    sums: dict[tuple[int, _Leaf], Counter[str]] = {}
    for row in rows:
        if row["idle"] and row["stack"] in leaves:
            leaf, kind = leaves[row["stack"]], _name_wait(row, chains[row["stack"]])
            for place in (leaf, leaf[:2]):
                sums.setdefault((row["thread"], place), Counter())[kind] += row["wall_ns"]
    return {place: kinds.most_common(1)[0][0] for place, kinds in sums.items()}


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
    ("wall_ns", "i64", "ns", "elapsed time, sampled; how much of it was cpu, cpu_queue or waits "
     "is as the kernel's clocks say"),
    ("samples", "i64", "", "samples that found it there; those of work count for both of cpu and "
     "cpu_queue, waits that are over before they are seen have none"),
    ("func", "text", "", "innermost function of Python"),
    ("file", "text", "", "file of the function"),
    ("lineno", "i64", "", "the line that ran, or called"),
    from_tables=True,
)  # fmt: skip
VIEWS = (THREAD_TIME,)
