"""Profiles: the sampled stacks of a recording, summed up or in the order of time, as values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from sonde.analysis.torch_spans import Span, find_first_ns, iter_spans
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.session.stack_table import WEIGHTS
from sonde.store.recording import Recording

Amounts = tuple[int, int, int]  # in the order of WEIGHTS


class Frame(NamedTuple):
    """One function on a stack, and where it stood."""

    func: str
    file: str
    lineno: int
    first_line: int


class Place(NamedTuple):
    """What frames are told apart by: a function, or one line of it."""

    func: str
    file: str
    line: int

    @property
    def label(self) -> str:
        """`func (file:line)`; always with brackets, so that no reader takes a name for a number."""
        return f"{self.func} ({self.file}:{self.line})" if self.file else f"{self.func} ()"


class Process(NamedTuple):
    """One recorded process."""

    session: str
    host: str
    pid: int
    rank: int | None
    command: str

    @property
    def label(self) -> str:
        """A name for people, the same in every format."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"{self.command} ({rank}{self.host} pid {self.pid})"


class Thread(NamedTuple):
    """One thread of a process."""

    process: Process
    id: int
    name: str

    @property
    def label(self) -> str:
        """A name for people: threads may share theirs."""
        return f"{self.name} ({self.id})"


class Stack(NamedTuple):
    """One stack of one thread, root first, and how much was seen of it, by weight."""

    thread: Thread
    frames: tuple[Frame, ...]
    samples: Amounts  # all of them; those that used CPU; those that held the GIL
    ns: Amounts


class Sample(NamedTuple):
    """A stretch of time in which one thread was seen at one stack."""

    thread: Thread
    frames: tuple[Frame, ...]
    start_ns: int  # wall clock, since 1970
    ns: Amounts  # the first is how long it lasted


@dataclass(frozen=True)
class Selection:
    """Which samples: when, of which threads (names, patterns like `Pool*`, or ids), weighed how.

    A row of several samples counts whole if the last of them was taken in the window."""

    window: Window
    threads: tuple[str, ...] = ()
    weight: str = "wall"
    lines: bool = False  # tell the lines of a function apart


class Profile:
    """What exporters write: read from a recording when it is asked for, and only once."""

    def __init__(self, recording: Recording, selection: Selection) -> None:
        self.selection, self.recording = selection, recording
        self.processes = _list_processes(recording)
        # The processes and the names of their threads, as SQL to build on.
        self.named_sql = _NAMED.format(processes=", ".join(list_parts(recording)))
        self._selected = _select_sql(self.named_sql, selection)
        self._places: dict[Frame, Place] = {}
        self._paths: dict[int, tuple[tuple[Frame, ...], tuple[Place, ...]]] = {}

    @property
    def weight(self) -> str:
        """The weight for formats that have room for one."""
        return self.selection.weight

    @property
    def by(self) -> int:
        """The place of that weight in `ns` and `samples`."""
        return WEIGHTS.index(self.selection.weight)

    @property
    def label(self) -> str:
        """What was recorded, for a title."""
        first, *more = self.processes
        return f"{len(more) + 1} processes of {first.command}" if more else first.label

    @cached_property
    def stacks(self) -> list[Stack]:
        """Every distinct stack of every thread; never empty."""
        rows = self.recording.query(_STACKS.format(selected=self._selected))
        return [
            Stack(thread, frames, (seen, on_cpu, with_gil), (wall, cpu, gil))
            for thread, frames, seen, on_cpu, with_gil, wall, cpu, gil in self._resolve(rows)
        ]

    @property
    def weighed(self) -> list[Stack]:
        """The stacks that were seen with the chosen weight; never empty, never all without any."""
        seen = [stack for stack in self.stacks if stack.samples[self.by]]
        if not any(stack.ns[self.by] for stack in seen):
            raise self.lack()
        return seen

    def lack(self) -> Error:
        """What to say if nothing has the chosen weight."""
        return Error(f"no {self.weight} time was seen in what is selected; try another weight")

    def iter_samples(self, *, needed: bool = True) -> Iterator[Sample]:
        """Every sample, by thread and then by time; never none, if they are needed."""
        rows = self.recording.query(_SAMPLES.format(selected=self._selected))
        if rows.num_rows == 0 and not needed:
            return
        for thread, frames, end, wall, cpu, gil in self._resolve(rows):
            yield Sample(thread, frames, end - wall, (wall, cpu, gil))

    def iter_spans(self) -> Iterator[Span]:
        """Calls of modules, operators and kernels; see spans.py. There may be none."""
        threads = self.match_threads("thread_id")
        return iter_spans(self.recording, self.named_sql, self.selection.window, threads)

    def match_threads(self, column: str) -> str:
        """SQL that is true for the threads that are selected; their names are `name`."""
        return _match_threads(self.selection, column)

    def find_first_ns(self) -> int | None:
        """When the first sample or span began that is selected, since 1970; None: there is none."""
        first_ns = find_first_ns(self.recording, self.named_sql, self.selection.window)
        known = (first_ns, self.span_ns[0])
        return min((ns for ns in known if ns is not None), default=None)

    def explain_nothing(self) -> Error:
        """What to say if nothing is selected."""
        return Error(_explain_nothing(self.recording, self.selection))

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """When the first sample began and the last one ended, since 1970."""
        row = self.recording.query(_SPAN.format(selected=self._selected)).to_pylist()[0]
        return row["start_ns"], row["end_ns"]

    @cached_property
    def period_ns(self) -> int:
        """The mean time between two samples of a thread."""
        seen = sum(stack.samples[0] for stack in self.stacks)
        return round(sum(stack.ns[0] for stack in self.stacks) / seen) if seen else 0

    def place(self, frame: Frame) -> Place:
        """What this frame counts as."""
        found = self._places.get(frame)  # frames are few and asked for by the million
        if found is None:
            line = frame.lineno if self.selection.lines else frame.first_line
            found = self._places[frame] = Place(frame.func, frame.file, line)
        return found

    def path(self, frames: tuple[Frame, ...]) -> tuple[Place, ...]:
        """What the frames of a stack count as."""
        # By identity: a million samples share a few stacks, and hashing those is what costs. The
        # frames are kept beside the answer, so that their id stays theirs.
        known = self._paths.get(id(frames))
        if known is None:
            known = self._paths[id(frames)] = frames, tuple(map(self.place, frames))
        return known[1]

    def _resolve(self, rows: pa.Table) -> Iterator[tuple[Any, ...]]:
        """Rows with threads and frames in the place of numbers; an error if there are none."""
        if rows.num_rows == 0:
            raise self.explain_nothing()
        frames = self._read_frames()
        threads: dict[tuple[int, int], Thread] = {}
        for batch in rows.to_batches(max_chunksize=50_000):
            columns = [column.to_pylist() for column in batch.columns]
            for at, thread, name, stack, *numbers in zip(*columns, strict=True):
                key = at, thread
                if key not in threads:
                    threads[key] = Thread(self.processes[at], thread, name)
                # Its frames were not kept; its time was, and must not vanish.
                yield threads[key], frames.get(stack, _LOST), *numbers

    def _read_frames(self) -> dict[int, tuple[Frame, ...]]:
        """The frames of every stack that is selected, root first."""
        rows = self.recording.query(_FRAMES.format(selected=self._selected))
        known: dict[Frame, Frame] = {}
        found: dict[int, list[Frame]] = {}
        for batch in rows.to_batches(max_chunksize=50_000):
            for stack, _, *parts in zip(*(part.to_pylist() for part in batch.columns), strict=True):
                frame = Frame(*parts)
                found.setdefault(stack, []).append(known.setdefault(frame, frame))
        return {stack: tuple(frames) for stack, frames in found.items()}


_LOST = (Frame("<lost>", "", 0, 0),)
_NEVER_US = 2**62

# `part` is the recorded process: a pid may have had several sessions, one after the other.
_NAMED = """\
WITH process(part, host, pid, first_us, next_us, offset_ns) AS (VALUES {processes}),
named AS (
    SELECT part, thread, arg_max(name, t_ns) AS name
    FROM python.thread JOIN process USING (host, pid)
    WHERE name IS NOT NULL AND epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
    GROUP BY ALL)"""
_SELECT = """\
{named},
selected AS (
    SELECT part, thread, COALESCE(name, 'thread') AS name, stack, samples, wall_ns, cpu_ns, gil,
        t_ns + offset_ns AS end_ns
    FROM python.stack_sample JOIN process USING (host, pid) LEFT JOIN named USING (part, thread)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
        AND ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})
        AND end_ns > {since_ns} AND end_ns <= {until_ns} AND ({threads}))
"""

_STACKS = """\
{selected}
SELECT part, thread, any_value(name), stack,
    SUM(samples)::BIGINT,
    COALESCE(SUM(samples) FILTER (cpu_ns > 0), 0)::BIGINT,
    COALESCE(SUM(samples) FILTER (gil), 0)::BIGINT,
    SUM(wall_ns)::BIGINT,
    SUM(cpu_ns)::BIGINT,
    COALESCE(SUM(wall_ns) FILTER (gil), 0)::BIGINT
FROM selected GROUP BY part, thread, stack ORDER BY part, thread, stack
"""

_SAMPLES = """\
{selected}
SELECT part, thread, name, stack, end_ns, wall_ns, cpu_ns, CASE WHEN gil THEN wall_ns ELSE 0 END
FROM selected ORDER BY part, thread, end_ns, stack
"""

_SPAN = "{selected} SELECT MIN(end_ns - wall_ns) AS start_ns, MAX(end_ns) AS end_ns FROM selected"

# Equal stacks have equal numbers in every process: each of them tells the same frames.
_FRAMES = """\
{selected}
SELECT DISTINCT stack, depth, COALESCE(func, '?'), COALESCE(file, '?'), COALESCE(lineno, 0),
    COALESCE(first_line, 0)
FROM python.frame WHERE stack IN (SELECT stack FROM selected) ORDER BY stack, depth DESC
"""


def _select_sql(named: str, selection: Selection) -> str:
    since_ns, until_ns = selection.window
    return _SELECT.format(
        named=named,
        # On `ts` beside the exact bounds: it is what spares reading all of a long archive.
        since_us=since_ns // 1000 - 1,
        until_us=until_ns // 1000 + 1,
        since_ns=since_ns,
        until_ns=until_ns,
        threads=_match_threads(selection, "thread"),
    )


def _match_threads(selection: Selection, column: str) -> str:
    found = (_match_thread(word, column) for word in selection.threads)
    return " OR ".join(found) or "true"


def list_parts(recording: Recording) -> Iterator[str]:
    """Each session as a row of SQL: where its rows begin, and where those of the next one do."""
    starts: dict[tuple[str, int], list[int]] = {}
    for session in recording.sessions:
        starts.setdefault((session.host, session.pid), []).append(session.start_wall_ns // 1000)
    for part, session in enumerate(recording.sessions):
        first = session.start_wall_ns // 1000
        later = [us for us in starts[session.host, session.pid] if us > first]
        bounds = f"{first}, {min(later, default=_NEVER_US)}"
        yield f"({part}, {quote(session.host)}, {session.pid}, {bounds}, {session.wall_offset_ns})"


def _match_thread(word: str, column: str) -> str:
    return f"{column}::VARCHAR = {quote(word)} OR name = {quote(word)} OR name GLOB {quote(word)}"


def quote(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _list_processes(recording: Recording) -> list[Process]:
    return [
        Process(s.id, s.host, s.pid, s.rank, name_command(s.meta.argv)) for s in recording.sessions
    ]


def name_command(argv: object) -> str:
    """What a person calls a program: the script or module, without folders and interpreter."""
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    rest = iter(words[1:])
    for word in rest:
        if word in ("-W", "-X"):
            next(rest, None)
        elif word == "-m":
            return next(rest, word)
        elif word == "-c" or not word.startswith("-"):
            return os.path.basename(word) or word
    return os.path.basename(words[0]) if words else "python"


def _explain_nothing(recording: Recording, selection: Selection) -> str:
    names = "SELECT DISTINCT name FROM python.thread WHERE name IS NOT NULL ORDER BY name LIMIT 20"
    if not recording.query("SELECT 1 FROM python.stack_sample LIMIT 1").num_rows:
        return "no stack was sampled here; `sonde config TARGET source.stack=on` starts it"
    if not selection.threads:
        return "no stack was sampled in that time; widen --since and --until"
    known = ", ".join(recording.query(names)["name"].to_pylist())
    asked = ", ".join(selection.threads)
    return f"no stack of {asked} was sampled in that time; threads here: {known or 'unnamed'}"
