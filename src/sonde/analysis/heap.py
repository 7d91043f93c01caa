"""What the program's memory was allocated by: now, up to a moment, or between two moments."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from sonde import _core
from sonde.analysis.code_fold import Step, fold, keep_all
from sonde.analysis.code_names import LIBRARY, MINE
from sonde.analysis.code_tree import CodeTree, add_path
from sonde.analysis.profile import Profile, ProfileFrame, RecordedThread, Selection, Stack
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.session.stack_table import WEIGHTS, is_native_place
from sonde.store.recording import Recording
from sonde.words import show_duration

TABLES = (
    "python.heap python.heap_history python.heap_sampling python.frame sonde.source "
    "sonde.source_log"
)
LAST = "SELECT epoch_us(MAX(ts)) AS us FROM python.heap_sampling"
BY = ("alive", "allocated")
_NOW = """
SELECT host, pid, stack, type, alive_bytes, alive_blocks, allocated_bytes, allocated_blocks
FROM python.heap"""
# A place that did not change has no new row: the last one before a moment says what it held.
_THEN = """
SELECT host, pid, stack, type, arg_max(alive_bytes, t_ns), arg_max(alive_blocks, t_ns),
    arg_max(allocated_bytes, t_ns), arg_max(allocated_blocks, t_ns)
FROM python.heap_history WHERE epoch_ns(ts) <= {moment_ns} GROUP BY host, pid, stack, type"""
_FRAMES = """
SELECT DISTINCT stack, depth, COALESCE(func, '?'), COALESCE(file, ''), COALESCE(lineno, 0),
    COALESCE(first_line, 0)
FROM python.frame WHERE stack IN (SELECT stack FROM python.heap) ORDER BY stack, depth DESC"""
_BEGUN = "SELECT MAX(t_ns) FROM sonde.source WHERE source = 'heap' AND state = 'on'"
# When the heap was recorded last, of each process: since when, until when, and why it was on.
_LOOKS = """
WITH switch AS (
  SELECT host, pid, ts, state = 'on' AS is_on, detail FROM sonde.source_log WHERE source = 'heap'
  QUALIFY is_on <> COALESCE(LAG(is_on) OVER (PARTITION BY host, pid ORDER BY ts), FALSE)),
look AS (
  SELECT host, pid, is_on, epoch_ns(ts) AS on_ns, detail,
         epoch_ns(LEAD(ts) OVER (PARTITION BY host, pid ORDER BY ts)) AS off_ns
  FROM switch QUALIFY is_on)
SELECT host, pid, MAX(on_ns), ARG_MAX(COALESCE(off_ns, 0), on_ns), ARG_MAX(detail, on_ns)
FROM look GROUP BY 1, 2"""
_NOTHING = (
    "the heap was not recorded here: that is done while the memory keeps growing, or if it is "
    "switched on; "
)
_LIVE = "`sonde config {pid} source.heap=on` begins it live"
_NEXT_TIME = "`sonde run --set source.heap=on PROGRAM` records it from the start"
_YOUNG_NS = 60 * 10**9
_LATE_NS = 5 * 10**9  # after the recording's begin: before that, hardly anything was allocated
_Key = tuple[str, int, int, str | None]


class HeapPlace(NamedTuple):
    """What one stack holds of one type: bytes and blocks that are alive, and all it allocated."""

    host: str
    pid: int
    stack: int
    type: str | None
    alive_bytes: int
    alive_blocks: int
    allocated_bytes: int
    allocated_blocks: int


@dataclass(frozen=True)
class HeapLine:
    """A line of the user's own code, and what is allocated there or in what it calls."""

    func: str
    file: str
    line: int
    call: str  # the library call that allocates; empty if the line itself does
    type: str | None
    alive_bytes: int
    alive_blocks: int
    allocated_bytes: int
    allocated_blocks: int


@dataclass(frozen=True)
class HeapTime:
    """The part of the time in which the heap was recorded."""

    on_ns: int  # since 1970
    off_ns: int  # 0: to the end
    is_over: bool  # and the program runs on
    why: str  # if nobody asked for it


class Heap:
    """The heap of a recording; with a beginning, only what was added since then."""

    def __init__(
        self, recording: Recording, since_ns: int | None = None, until_ns: int | None = None
    ) -> None:
        self.recording, self.since_ns, self.until_ns = recording, since_ns, until_ns

    @cached_property
    def places(self) -> list[HeapPlace]:
        """What every place holds, or holds more than before; an error if nothing was recorded."""
        found = self._read(self.until_ns)
        if not found:
            raise Error(self.describe_age() or self._explain_nothing())
        if self.since_ns is not None:
            before = self._read(self.since_ns)
            none = (0, 0, 0, 0)
            found = {
                key: tuple(b - a for a, b in zip(before.get(key, none), values, strict=True))
                for key, values in found.items()
            }
        return [HeapPlace(*key, *values) for key, values in found.items() if any(values)]

    def describe_age(self) -> str:
        """Return how young the record of a live heap is; empty if it is old enough."""
        (begun_ns,) = self.recording.query(_BEGUN).column(0).to_pylist()
        is_live = any(session.is_alive() for session in self.recording.sessions)
        age_ns = _core.clock_ns() - begun_ns if is_live and begun_ns else _YOUNG_NS
        if not 0 <= age_ns < _YOUNG_NS:
            return ""
        return (
            f"the heap has been recorded for {show_duration(age_ns)}: what was allocated "
            "before is not known; ask again in a minute"
        )

    @cached_property
    def recorded(self) -> HeapTime | None:
        """In which part of the time the heap was recorded; None if that was all of it, or another
        part in each of several processes."""
        found = [column.to_pylist() for column in self.recording.query(_LOOKS).columns]
        sessions = self.recording.sessions
        if len(sessions) != 1 or not found[0]:
            return None
        (on_ns,), (off_ns,), (detail,) = found[2:]
        is_late = on_ns - sessions[0].start_wall_ns > _LATE_NS
        ended_ns = off_ns if off_ns and sessions[0].is_alive() else 0
        found_why = re.match(r"for a time, (because .*?); ", detail or "")
        if not (is_late or ended_ns or found_why):
            return None
        return HeapTime(on_ns, off_ns, bool(ended_ns), found_why[1] if found_why else "")

    def _explain_nothing(self) -> str:
        live = [one.pid for one in self.recording.sessions if one.is_alive()]
        return _NOTHING + (_LIVE.format(pid=live[0]) if live else _NEXT_TIME)

    def _read(self, moment_ns: int | None) -> dict[_Key, tuple[int, ...]]:
        sql = _NOW if moment_ns is None else _THEN.format(moment_ns=moment_ns)
        rows = self.recording.query(sql)
        columns = [column.to_pylist() for column in rows.columns]
        found: dict[_Key, tuple[int, ...]] = {}
        for host, pid, stack, kind, *values in zip(*columns, strict=True):
            known = found.get((host, pid, stack, kind), (0, 0, 0, 0))
            found[host, pid, stack, kind] = tuple(map(sum, zip(known, values, strict=True)))
        return found

    @cached_property
    def frames(self) -> dict[int, tuple[ProfileFrame, ...]]:
        """The frames of every stack, root first."""
        found: dict[int, list[ProfileFrame]] = {}
        columns = [column.to_pylist() for column in self.recording.query(_FRAMES).columns]
        for stack, _, *frame in zip(*columns, strict=True):
            found.setdefault(stack, []).append(ProfileFrame(*frame))
        return {stack: tuple(frames) for stack, frames in found.items()}

    def fold(
        self, profile: Profile, mine: Sequence[str] = (), *, all_frames: bool = False,
        native: bool = True,
    ) -> dict[int, list[Step]]:  # fmt: skip
        """Return every stack as a person tells it; see code_fold.py. `native`: with the functions
        of C in which it ends, the first and the last."""
        own = profile.make_owner(mine)
        has_mine = any(own(frame.file) == MINE for one in self.frames.values() for frame in one)
        if all_frames:
            return {stack: keep_all(one, own) for stack, one in self.frames.items()}
        found = {
            stack: fold(one, own, by_package=not has_mine) for stack, one in self.frames.items()
        }
        if native:
            for stack, frames in self.frames.items():
                found[stack] += name_native_steps(frames, found[stack][-1])
        return found

    def make_profile(self, by: str = "alive") -> HeapProfile:
        """Return the heap as exporters write it."""
        return HeapProfile(self, by)


def name_native_steps(frames: Sequence[ProfileFrame], below: Step) -> list[Step]:
    """Return the first and the last function of C that a stack ends with, the interpreter's own
    aside: types tell more about what it allocates."""
    native = list(takewhile(lambda one: is_native_place(one.file, one.lineno), reversed(frames)))
    known = [one for one in reversed(native) if not _is_interpreter(one.file)]
    ends = dict.fromkeys((one.func, one.file) for one in (*known[:1], *known[-1:]))
    return [
        Step(f"{func} ({_name_library(file)})", LIBRARY, below.file, below.line, 0)
        for func, file in ends
    ]


def _name_library(file: str) -> str:
    return os.path.basename(file).partition(".")[0]


def _is_interpreter(file: str) -> bool:
    return os.path.basename(file).startswith(("libpython", "python"))


_LOST = [Step("<lost>", MINE, "", 0, 0)]


def read_heap_tree(
    heap: Heap, by: str = "alive", mine: Sequence[str] = (), *, all_frames: bool = False
) -> CodeTree:
    """Return the call tree with bytes in place of working time; types are below their lines. What
    shrank is left out of it, and added up in `rest_ns`."""
    tree = CodeTree(heap.make_profile())
    steps = heap.fold(tree.profile, mine, all_frames=all_frames)
    for place in heap.places:
        path = steps.get(place.stack) or _LOST
        amount = place.alive_bytes if by == "alive" else place.allocated_bytes
        if amount <= 0:
            tree.rest_ns -= amount
            continue
        if place.type is not None:
            path = [*path, path[-1]._replace(name=f"{place.type} objects", first_line=0)]
        add_path(tree.root, path, (place.pid, 0), amount, 0, is_idle=False)
    return tree


def list_lines(heap: Heap, by: str = "alive", mine: Sequence[str] = ()) -> list[HeapLine]:
    """Return lines of the user's own code by what they hold, or by what they grew, the most first.

    A stack without such code counts at its innermost line."""
    steps = heap.fold(heap.make_profile(), mine, native=False)
    calls = {
        stack: next((one.name for one in name_native_steps(frames, _LOST[0])), "")
        for stack, frames in heap.frames.items()
    }
    sums: dict[tuple[str, str, int, str, str | None], list[int]] = {}
    for place in heap.places:
        path = steps.get(place.stack) or _LOST
        owned = [step for step in path if step.owner == MINE]
        at = owned[-1] if owned else path[-1]
        call = ""
        if owned:
            is_call = path[-1].owner != MINE
            call = path[-1].name if is_call else calls.get(place.stack, "")
        known = sums.setdefault((at.name, at.file, at.line, call, place.type), [0, 0, 0, 0])
        for index, value in enumerate(place[4:]):
            known[index] += value
    found = [HeapLine(*key, *values) for key, values in sums.items()]
    return sorted(found, key=lambda line: -getattr(line, f"{by}_bytes"))


def list_grown_lines(recording: Recording, since_ns: int, until_ns: int) -> list[HeapLine]:
    """Return the lines that hold more at the second moment than at the first, the most first.

    It is empty where the heap was not recorded at that time."""
    heap = Heap(recording, since_ns, until_ns)
    try:
        found = list_lines(heap)
    except Error:
        return []
    return [line for line in found if line.alive_bytes > 0]


class HeapProfile(Profile):
    """Stacks weighed by bytes: those alive, and all that were allocated."""

    unit = "bytes"
    weight_names = ("alive", "allocated", "")

    def __init__(self, heap: Heap, by: str) -> None:
        window = Window(heap.since_ns or 0, heap.until_ns or 2**62)
        weight = WEIGHTS[self.weight_names.index(by)]
        super().__init__(heap.recording, Selection(window, weight=weight))
        self._heap = heap

    @cached_property
    def stacks(self) -> list[Stack]:
        """Every stack that allocated; its type is its innermost frame."""
        parts = {(one.host, one.pid): one for one in self.processes}
        found = []
        for place in self._heap.places:
            thread = RecordedThread(parts[place.host, place.pid], 0, "all threads")
            frames = self._heap.frames.get(place.stack, (ProfileFrame("<lost>", "", 0, 0),))
            if place.type is not None:
                frames = (*frames, ProfileFrame(f"{place.type} objects", "", 0, 0))
            alive, allocated = max(0, place.alive_bytes), max(0, place.allocated_bytes)
            blocks = max(0, place.alive_blocks), max(0, place.allocated_blocks), 0
            found.append(Stack(thread, frames, blocks, (alive, allocated, 0)))
        return sorted(found, key=lambda stack: stack.thread)

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """The time in which it was allocated, since 1970."""
        first = min(session.start_wall_ns for session in self.recording.sessions)
        last_us = self.recording.query(LAST)["us"][0].as_py()
        since, until = self._heap.since_ns or first, self._heap.until_ns
        return since, until or (since if last_us is None else max(since, last_us * 1000))
