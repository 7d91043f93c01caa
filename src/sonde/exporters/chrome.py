"""Chrome trace events: a timeline of every thread for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count, groupby
from typing import IO, NamedTuple

from sonde.selection import Place, Process, Profile, Sample, Thread
from sonde.spans import BACKWARD, MODULES, OPERATORS, STREAM, Span

SUFFIX = ".trace.json"
TEXT = True
IN_ORDER = True  # does it need the order of time?
OPEN = "drop it on https://ui.perfetto.dev, or load it in chrome://tracing"

_LANES = ("samples", MODULES, BACKWARD, OPERATORS, STREAM)  # the streams of devices follow
_TIDS = 2**22  # thread ids are smaller: Linux gives out no more
_GAP = 2  # this many periods without a sample, and the thread may have been anywhere


class Slice(NamedTuple):
    """A stretch of time in which one place stayed at one depth of a thread's stack."""

    start_ns: int
    depth: int
    end_ns: int
    place: Place


def write(profile: Profile, file: IO[str]) -> None:
    """One slice per function for as long as consecutive samples saw it at its depth; below it the
    calls of modules, operators and kernels, where they were recorded."""
    start_ns = profile.first_ns
    # Times count from the start: a double cannot hold nanoseconds since 1970.
    about = {"recorder": "sonde", "start_wall_ns": str(start_ns)}
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
    numbers: dict[Process, int] = {}
    separator = "\n"
    for line in _write_all(profile, numbers, start_ns):
        file.write(separator + line)
        separator = ",\n"
    file.write("\n]}\n")


def _write_all(profile: Profile, numbers: dict[Process, int], start_ns: int) -> Iterator[str]:
    for thread, samples in groupby(profile.iter_samples(), key=lambda sample: sample.thread):
        yield from _write_thread(profile, thread, samples, numbers, start_ns)
    flows = count(1)
    for _, spans in groupby(profile.iter_spans(), key=lambda span: span[:3] + span[4:5]):
        yield from _write_lane(profile, list(spans), numbers, start_ns, flows)


def _write_thread(
    profile: Profile,
    thread: Thread,
    samples: Iterable[Sample],
    numbers: dict[Process, int],
    start_ns: int,
) -> Iterator[str]:
    yield from _write_process(thread.process, numbers)
    pid, tid = numbers[thread.process], thread.id
    yield _name("thread_name", pid, tid, name=thread.name)
    yield _name("thread_sort_index", pid, tid, sort_index=tid * len(_LANES))
    places: dict[Place, str] = {}
    # A viewer wants the outer slice before the inner ones that begin with it.
    for start, _, end, place in sorted(find_slices(profile, samples)):
        if place not in places:
            places[place] = _describe(place)
        yield _slice(pid, tid, start - start_ns, end - start, places[place])


def _write_process(process: Process, numbers: dict[Process, int]) -> Iterator[str]:
    if process not in numbers:
        numbers[process] = _number(process, numbers)
        yield _name("process_name", numbers[process], 0, name=process.label)
        order = len(numbers) if process.rank is None else process.rank
        yield _name("process_sort_index", numbers[process], 0, sort_index=order)


# ---- modules, operators and kernels --------------------------------------------------------------


def _write_lane(
    profile: Profile,
    spans: list[Span],
    numbers: dict[Process, int],
    start_ns: int,
    flows: count[int],
) -> Iterator[str]:
    """Spans of one lane of one thread, as a thread of its own: they do not nest with samples."""
    first = spans[0]
    process = profile.find_process(first.part)
    yield from _write_process(process, numbers)
    pid, tid = numbers[process], _find_tid(first.lane, first.thread, first.device)
    yield _name("thread_name", pid, tid, name=_name_lane(first))
    # Below the thread they are of; streams come last.
    order = _LANES.index(first.lane) + len(_LANES) * (
        first.thread if first.lane != STREAM else _TIDS
    )
    yield _name("thread_sort_index", pid, tid, sort_index=order)
    for span, end_ns in _cut(spans):
        said = {"name": span.label, "cat": first.lane, "args": {"step": span.step, **span.about}}
        body = json.dumps(said, separators=(",", ":"))[1:-1]
        yield _slice(pid, tid, span.start_ns - start_ns, end_ns - span.start_ns, body)
        if span.lane == STREAM and span.launch_ns is not None and span.launch_thread is not None:
            launcher = _find_tid(OPERATORS, span.launch_thread, 0)
            number = next(flows)
            yield _flow("s", number, pid, launcher, span.launch_ns - start_ns)
            yield _flow("f", number, pid, tid, span.start_ns - start_ns)


def _cut(spans: list[Span]) -> Iterator[tuple[Span, int]]:
    """Each span with an end such that they nest, or on a stream follow each other: clocks and
    roundings may have them overlap a little, and a viewer would drop them."""
    is_open: list[int] = []
    for span, after in zip(spans, [*spans[1:], None], strict=True):
        end_ns = span.end_ns
        if span.lane == STREAM:
            end_ns = end_ns if after is None else max(span.start_ns, min(end_ns, after.start_ns))
        else:
            while is_open and is_open[-1] <= span.start_ns:
                is_open.pop()
            end_ns = min([end_ns, *is_open[-1:]])
            is_open.append(end_ns)
        yield span, end_ns


def _find_tid(lane: str, thread: int, device: int) -> int:
    """A number that no thread has: Linux gives out smaller ones."""
    return _TIDS * (_LANES.index(lane) + device) + thread % _TIDS


def _name_lane(span: Span) -> str:
    if span.lane == STREAM:
        return f"GPU {span.device} stream {span.thread}"
    return f"{span.thread_name}: {span.lane}"


def _flow(kind: str, number: int, pid: int, tid: int, at_ns: int) -> str:
    ends = ',"bp":"e"' if kind == "f" else ""
    where = f'"id":{number},"pid":{pid},"tid":{tid},"ts":{_micros(at_ns)}'
    return f'{{"ph":"{kind}","cat":"ac2g","name":"ac2g",{where}{ends}}}'


def _slice(pid: int, tid: int, start_ns: int, dur_ns: int, body: str) -> str:
    times = f'"ts":{_micros(start_ns)},"dur":{_micros(dur_ns)}'
    return f'{{"ph":"X","pid":{pid},"tid":{tid},{times},{body}}}'


# ---- samples -------------------------------------------------------------------------------------


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
        number += _TIDS
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
