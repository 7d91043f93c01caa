"""Profiles: the sampled stacks of a recording, summed up or in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sonde.analysis.code_names import MINE, find_owner
from sonde.analysis.rest import is_at_rest
from sonde.analysis.torch_spans import TorchSpan, find_first_ns, iter_spans
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.session.stack_table import WEIGHTS
from sonde.words import name_program

if TYPE_CHECKING:  # the result of a run is a profile, too, and needs neither Arrow nor SQL
    import pyarrow as pa

    from sonde.store.recording import Recording

Amounts = tuple[int, int, int]  # in the order of WEIGHTS


class ProfileFrame(NamedTuple):
    """One function on a stack, with the line that it was at."""

    func: str
    file: str
    lineno: int
    first_line: int


class Place(NamedTuple):
    """What frames count as: a function, or one line of it."""

    func: str
    file: str
    line: int

    @property
    def label(self) -> str:
        """`func (file:line)`; always with brackets, so that no viewer takes a name for a number."""
        return f"{self.func} ({self.file}:{self.line})" if self.file else f"{self.func} ()"


class RecordedProcess(NamedTuple):
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


class RecordedThread(NamedTuple):
    """One thread of a process."""

    process: RecordedProcess
    id: int
    name: str

    @property
    def label(self) -> str:
        """A name for people: threads may share theirs."""
        return f"{self.name} ({self.id})"


class Stack(NamedTuple):
    """One stack of one thread, root first, and its samples and times by weight."""

    thread: RecordedThread
    frames: tuple[ProfileFrame, ...]
    samples: Amounts  # all samples; those that used CPU; those that held the GIL
    ns: Amounts


class Sample(NamedTuple):
    """A time for which one thread was seen at one stack."""

    thread: RecordedThread
    frames: tuple[ProfileFrame, ...]
    start_ns: int  # wall clock, since 1970
    ns: Amounts  # the first is its duration


@dataclass(frozen=True)
class Selection:
    """Which samples: from when, of which threads (names, patterns like `Pool*`, or ids), and how
    they are weighed. A row of several samples counts if the last was taken in the window."""

    window: Window
    threads: tuple[str, ...] = ()
    weight: str = "wall"
    lines: bool = False  # tell the lines of a function apart
    idle: bool = True  # keep the time of threads without work, see rest.py


class Profile:
    """What exporters write; it is read from a recording once, when it is needed."""

    unit = "ns"  # of the amounts; and what the weights are called there
    weight_names = WEIGHTS
    rest: Sequence[Stack] = ()  # of threads without work, if their time is left out of `stacks`

    def __init__(self, recording: Recording, selection: Selection) -> None:
        self.selection, self.recording = selection, recording
        self.folder = recording.sessions[0].meta.cwd  # where the program began: names start there
        self.processes = _list_processes(recording)
        # The processes and the names of their threads, as SQL to build on.
        self.named_sql = _NAMED.format(processes=", ".join(list_parts(recording)))
        # The samples of the selection, as a table `selected` to build on.
        self.slack_us = _find_slack_us(recording)
        self.selected_sql = _select_sql(self.named_sql, selection, self.slack_us)
        self._places: dict[ProfileFrame, Place] = {}
        self._paths: dict[int, tuple[tuple[ProfileFrame, ...], tuple[Place, ...]]] = {}

    @property
    def weight(self) -> str:
        """The weight for formats that have only one."""
        return self.selection.weight

    @property
    def by(self) -> int:
        """The index of that weight in `ns` and `samples`."""
        return WEIGHTS.index(self.selection.weight)

    @property
    def label(self) -> str:
        """What was recorded, for a title."""
        first, *more = self.processes
        return f"{len(more) + 1} processes of {first.command}" if more else first.label

    @cached_property
    def stacks(self) -> list[Stack]:
        """Every distinct stack of every thread; never empty."""
        rows = self.recording.query(_STACKS.format(selected=self.selected_sql))
        found = [
            Stack(thread, frames, (seen, on_cpu, with_gil), (wall, cpu, gil))
            for thread, frames, seen, on_cpu, with_gil, wall, cpu, gil in self._resolve(rows)
        ]
        return found if self.selection.idle else self._leave_out_rest(found, rows)

    def make_owner(self, mine: Sequence[str] = ()) -> Callable[[str], str]:
        """Return a function that says whose code a file is. What fits a pattern of `mine`, or of
        the setting `code.mine`, is the user's own."""
        texts = (session.read_config().get("code.mine") for session in self.recording.sessions[:1])
        patterns = (*mine, *(word for text in texts for word in str(text or "").split()))
        return lru_cache(None)(lambda file: find_owner(file, patterns))

    def _leave_out_rest(self, found: list[Stack], rows: pa.Table) -> list[Stack]:
        """Return stacks without the time of threads that had no work, unless that is all."""
        own, frames = self.make_owner(), self.read_frames()
        has_mine = any(own(frame.file) == MINE for one in frames.values() for frame in one)
        resting = self.recording.query(_RESTING.format(selected=self.selected_sql)).to_pylist()
        at_rest = {
            (row["part"], row["thread"], row["stack"]): (row["samples"], row["wall_ns"])
            for row in resting
            if is_at_rest(
                frames.get(row["stack"], ()), own, has_mine=has_mine,
                is_main=row["thread"] == self.processes[row["part"]].pid,
            )
        }  # fmt: skip
        kept, rests = [], []
        keys = (rows[name].to_pylist() for name in ("part", "thread", "stack"))
        for stack, key in zip(found, zip(*keys, strict=True), strict=True):
            seen, wall = at_rest.get(key, (0, 0))
            samples, ns = (stack.samples[0] - seen, *stack.samples[1:]), stack.ns
            if seen:
                rests.append(stack._replace(samples=(seen, 0, 0), ns=(wall, 0, 0)))
            if samples[0] or ns[0] > wall or ns[1]:
                kept.append(stack._replace(samples=samples, ns=(ns[0] - wall, *ns[1:])))
        self.rest = rests if kept else ()
        return kept or found

    @property
    def weighed(self) -> list[Stack]:
        """The stacks with samples of the chosen weight; an error if there is no such time."""
        seen = [stack for stack in self.stacks if stack.samples[self.by]]
        if not any(stack.ns[self.by] for stack in seen):
            raise self.explain_no_weight()
        return seen

    def explain_no_weight(self) -> Error:
        """Return the error for a selection without any time of the chosen weight."""
        return Error(f"no {self.weight} time was sampled in this selection; try another weight")

    def iter_samples(self, *, needed: bool = True) -> Iterator[Sample]:
        """Yield every sample by thread and then by time; if `needed`, none is an error."""
        rows = self.recording.query(_SAMPLES.format(selected=self.selected_sql))
        if rows.num_rows == 0 and not needed:
            return
        for thread, frames, end, wall, cpu, gil in self._resolve(rows):
            yield Sample(thread, frames, end - wall, (wall, cpu, gil))

    def iter_spans(self) -> Iterator[TorchSpan]:
        """Return calls of modules, operators and kernels, if there are any; see torch_spans.py."""
        threads = self.match_threads("thread_id")
        return iter_spans(self.recording, self.named_sql, self.selection.window, threads)

    def match_threads(self, column: str) -> str:
        """Return SQL that is true for the selected threads; their names are in `name`."""
        return _match_threads(self.selection, column)

    def find_first_ns(self) -> int | None:
        """Return when the first selected sample or span began, since 1970, or None."""
        first_ns = find_first_ns(self.recording, self.named_sql, self.selection.window)
        known = (first_ns, self.span_ns[0])
        return min((ns for ns in known if ns is not None), default=None)

    def explain_nothing(self) -> Error:
        """Return the error for a selection without samples."""
        return Error(_explain_nothing(self.recording, self.selection))

    @cached_property
    def span_ns(self) -> tuple[int, int]:
        """When the first sample began and the last one ended, since 1970."""
        row = self.recording.query(_SPAN.format(selected=self.selected_sql)).to_pylist()[0]
        return row["start_ns"], row["end_ns"]

    @cached_property
    def period_ns(self) -> int:
        """The mean time between two samples of a thread."""
        seen = sum(stack.samples[0] for stack in self.stacks)
        return round(sum(stack.ns[0] for stack in self.stacks) / seen) if seen else 0

    def place(self, frame: ProfileFrame) -> Place:
        """Return the place that a frame counts as."""
        found = self._places.get(frame)  # there are few frames, and millions of calls
        if found is None:
            line = frame.lineno if self.selection.lines else frame.first_line
            found = self._places[frame] = Place(frame.func, frame.file, line)
        return found

    def path(self, frames: tuple[ProfileFrame, ...]) -> tuple[Place, ...]:
        """Return the places that the frames of a stack count as."""
        # By identity: a million samples share a few stacks, and hashing those is expensive. The
        # frames are kept beside the answer, so that their id stays valid.
        known = self._paths.get(id(frames))
        if known is None:
            known = self._paths[id(frames)] = frames, tuple(map(self.place, frames))
        return known[1]

    def _resolve(self, rows: pa.Table) -> Iterator[tuple[Any, ...]]:
        """Yield rows with threads and frames in place of numbers; no rows are an error."""
        if rows.num_rows == 0:
            raise self.explain_nothing()
        frames = self.read_frames()
        threads: dict[tuple[int, int], RecordedThread] = {}
        for batch in rows.to_batches(max_chunksize=50_000):
            columns = [column.to_pylist() for column in batch.columns]
            for at, thread, name, stack, *numbers in zip(*columns, strict=True):
                key = at, thread
                if key not in threads:
                    threads[key] = RecordedThread(self.processes[at], thread, name)
                # The frames of a stack may be lost; its time is known and must not vanish.
                yield threads[key], frames.get(stack, _LOST), *numbers

    def read_frames(self) -> dict[int, tuple[ProfileFrame, ...]]:
        """Return the frames of every selected stack, root first."""
        rows = self.recording.query(_FRAMES.format(selected=self.selected_sql))
        known: dict[ProfileFrame, ProfileFrame] = {}
        found: dict[int, list[ProfileFrame]] = {}
        for batch in rows.to_batches(max_chunksize=50_000):
            for stack, _, *parts in zip(*(part.to_pylist() for part in batch.columns), strict=True):
                frame = ProfileFrame(*parts)
                found.setdefault(stack, []).append(known.setdefault(frame, frame))
        return {stack: tuple(frames) for stack, frames in found.items()}


_LOST = (ProfileFrame("<lost>", "", 0, 0),)
_NEVER_US = 2**62

# `part` is a process: a pid may have had several. On a busy machine sleepers may be ready to run.
_NAMED = """\
WITH process AS (SELECT UNNEST([{processes}], recursive := true)),
named AS (
    SELECT part, thread, arg_max(name, t_ns) AS name
    FROM python.thread JOIN process USING (host, pid)
    WHERE name IS NOT NULL AND epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
    GROUP BY ALL)"""
_SELECT = """\
{named},
selected AS (SELECT part, thread, COALESCE(name, 'thread') AS name, stack, samples, wall_ns, cpu_ns,
        gil, call, wait, queue_ns, t_ns + offset_ns AS end_ns,
        idle OR COALESCE(call, '') = 'time.sleep' AS idle
    FROM python.stack_sample JOIN process USING (host, pid) LEFT JOIN named USING (part, thread)
    WHERE epoch_us(ts) >= first_us AND epoch_us(ts) < next_us
        AND ts >= make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})
        AND end_ns > {since_ns} AND end_ns <= {until_ns} AND ({threads}))
"""

_STACKS = """\
{selected}
SELECT part, thread, any_value(name) AS name, stack,
    SUM(samples)::BIGINT AS seen,
    COALESCE(SUM(samples) FILTER (cpu_ns > 0), 0)::BIGINT,
    COALESCE(SUM(samples) FILTER (gil), 0)::BIGINT,
    SUM(wall_ns)::BIGINT AS wall,
    SUM(cpu_ns)::BIGINT AS cpu,
    COALESCE(SUM(wall_ns) FILTER (gil), 0)::BIGINT
FROM selected GROUP BY part, thread, stack ORDER BY part, thread, stack
"""

# What holds the GIL while it is idle is no rest: nobody else can work.
_RESTING = """\
{selected}
SELECT part, thread, stack, SUM(samples)::BIGINT AS samples, SUM(wall_ns)::BIGINT AS wall_ns
FROM selected WHERE idle AND NOT gil GROUP BY ALL
"""

_SAMPLES = """\
{selected}
SELECT part, thread, name, stack, end_ns, wall_ns, cpu_ns, CASE WHEN gil THEN wall_ns ELSE 0 END
FROM selected ORDER BY part, thread, end_ns, wall_ns DESC, stack
"""

_SPAN = "{selected} SELECT MIN(end_ns - wall_ns) AS start_ns, MAX(end_ns) AS end_ns FROM selected"

# Equal stacks have equal numbers in every process, and so the same frames.
_FRAMES = """\
{selected}
SELECT DISTINCT stack, depth, COALESCE(func, '?'), COALESCE(file, '?'), COALESCE(lineno, 0),
    COALESCE(first_line, 0)
FROM python.frame WHERE stack IN (SELECT stack FROM selected) ORDER BY stack, depth DESC
"""


def _select_sql(named: str, selection: Selection, slack_us: int) -> str:
    since_ns, until_ns = selection.window
    return _SELECT.format(
        named=named,
        # On `ts` as well as the exact bounds: it saves reading all of a long archive.
        since_us=since_ns // 1000 - slack_us,
        until_us=until_ns // 1000 + slack_us,
        since_ns=since_ns,
        until_ns=until_ns,
        threads=_match_threads(selection, "thread"),
    )


def _match_threads(selection: Selection, column: str) -> str:
    found = (_match_thread(word, column) for word in selection.threads)
    return " OR ".join(found) or "true"


def list_parts(recording: Recording) -> Iterator[str]:
    """Yield each session as a struct of SQL: where its rows begin, and where the next one's do."""
    # To be unnested: beside VALUES the engine would hold the recorded table in memory, not these.
    starts: dict[tuple[str, int], list[int]] = {}
    for session in recording.sessions:
        starts.setdefault((session.host, session.pid), []).append(session.start_wall_ns // 1000)
    for part, session in enumerate(recording.sessions):
        first = session.start_wall_ns // 1000
        begin = first - max(0, session.ahead_ns) // 1000
        later = [us for us in starts[session.host, session.pid] if us > first]
        bounds = f"'first_us': {begin}, 'next_us': {min(later, default=_NEVER_US)}"
        offset_ns = session.wall_offset_ns - session.ahead_ns
        who = f"'part': {part}, 'host': {quote(session.host)}, 'pid': {session.pid}"
        yield f"{{{who}, {bounds}, 'offset_ns': {offset_ns}}}"


def _find_slack_us(recording: Recording) -> int:
    """Return how far the column `ts` may be from the time that a row is placed at."""
    return max(abs(one.ahead_ns) for one in recording.sessions) // 1000 + 1


def _match_thread(word: str, column: str) -> str:
    return f"{column}::VARCHAR = {quote(word)} OR name = {quote(word)} OR name GLOB {quote(word)}"


def quote(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _list_processes(recording: Recording) -> list[RecordedProcess]:
    return [
        RecordedProcess(s.id, s.host, s.pid, s.rank, name_program(s.meta.argv))
        for s in recording.sessions
    ]


def _explain_nothing(recording: Recording, selection: Selection) -> str:
    names = "SELECT DISTINCT name FROM python.thread WHERE name IS NOT NULL ORDER BY name LIMIT 20"
    if not recording.query("SELECT 1 FROM python.stack_sample LIMIT 1").num_rows:
        return "no stack was sampled here; `sonde config TARGET source.stack=on` turns sampling on"
    if not selection.threads:
        return "no stack was sampled in that time; widen --since and --until"
    known = ", ".join(recording.query(names)["name"].to_pylist())
    asked = ", ".join(selection.threads)
    return f"no stack of {asked} was sampled in that time; threads here: {known or 'unnamed'}"
