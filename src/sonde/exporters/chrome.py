"""Chrome trace events: a timeline of every thread for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import IO, NamedTuple

from sonde.selection import Place, Process, Profile, Sample, Thread

SUFFIX = ".trace.json"
TEXT = True
IN_ORDER = True  # does it need the order of time?
OPEN = "drop it on https://ui.perfetto.dev, or load it in chrome://tracing"

_GAP = 2  # this many periods without a sample, and the thread may have been anywhere


class Slice(NamedTuple):
    """A stretch of time in which one place stayed at one depth of a thread's stack."""

    start_ns: int
    depth: int
    end_ns: int
    place: Place


def write(profile: Profile, file: IO[str]) -> None:
    """One slice per function for as long as consecutive samples saw it at its depth."""
    start_ns = profile.span_ns[0]
    # Times count from the first sample: a double cannot hold nanoseconds since 1970.
    about = {"recorder": "sonde", "start_wall_ns": str(start_ns)}
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
    numbers: dict[Process, int] = {}
    separator = "\n"
    for thread, samples in groupby(profile.iter_samples(), key=lambda sample: sample.thread):
        for line in _write_thread(profile, thread, samples, numbers, start_ns):
            file.write(separator + line)
            separator = ",\n"
    file.write("\n]}\n")


def _write_thread(
    profile: Profile,
    thread: Thread,
    samples: Iterable[Sample],
    numbers: dict[Process, int],
    start_ns: int,
) -> Iterator[str]:
    process = thread.process
    if process not in numbers:
        numbers[process] = _number(process, numbers)
        yield _name("process_name", numbers[process], 0, name=process.label)
        order = len(numbers) if process.rank is None else process.rank
        yield _name("process_sort_index", numbers[process], 0, sort_index=order)
    pid, tid = numbers[process], thread.id
    yield _name("thread_name", pid, tid, name=thread.name)
    places: dict[Place, str] = {}
    # A viewer wants the outer slice before the inner ones that begin with it.
    for start, _, end, place in sorted(find_slices(profile, samples)):
        if place not in places:
            places[place] = _describe(place)
        times = f'"ts":{_micros(start - start_ns)},"dur":{_micros(end - start)}'
        yield f'{{"ph":"X","pid":{pid},"tid":{tid},{times},{places[place]}}}'


def find_slices(profile: Profile, samples: Iterable[Sample]) -> Iterator[Slice]:
    """Slices of one thread's samples, each when it ends. A pause between samples ends them all."""
    is_open: list[tuple[int, Place]] = []
    end_ns = 0
    for sample in samples:
        path = profile.path(sample.frames)
        follows = sample.start_ns - end_ns <= _GAP * profile.period_ns
        kept = _count_same(is_open, path) if follows else 0
        yield from _close(is_open, kept, end_ns)
        # A sample must not reach back into the one before.
        start_ns = max(sample.start_ns, end_ns)
        is_open += [(start_ns, place) for place in path[kept:]]
        end_ns = max(end_ns, sample.start_ns + sample.ns[0])
    yield from _close(is_open, 0, end_ns)


def _count_same(is_open: list[tuple[int, Place]], path: tuple[Place, ...]) -> int:
    kept = 0
    for (_, old), new in zip(is_open, path, strict=False):
        if old != new:
            break
        kept += 1
    return kept


def _close(is_open: list[tuple[int, Place]], kept: int, end_ns: int) -> Iterator[Slice]:
    while len(is_open) > kept:
        start_ns, place = is_open.pop()
        if end_ns > start_ns:
            yield Slice(start_ns, len(is_open), end_ns, place)


def _number(process: Process, taken: dict[Process, int]) -> int:
    """Its pid, or a free number: processes of two machines may share theirs."""
    number = process.pid
    while number in taken.values():
        number += 2**22  # more than Linux gives out
    return number


def _name(kind: str, pid: int, tid: int, **args: object) -> str:
    event = {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}
    return json.dumps(event, separators=(",", ":"))


def _describe(place: Place) -> str:
    where = {"file": place.file, "line": place.line}
    event = {"name": place.func, "cat": "python", "args": where}
    return json.dumps(event, separators=(",", ":"))[1:-1]


def _micros(ns: int) -> str:
    """Microseconds to the last nanosecond."""
    return f"{ns // 1000}.{ns % 1000:03d}"
