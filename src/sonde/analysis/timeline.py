"""A whole recording on one timeline, as rows that every trace format can write."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from sonde import _core
from sonde.analysis import timeline_sql
from sonde.analysis.profile import Place, Profile, RecordedProcess, RecordedThread, Sample
from sonde.analysis.region_layout import FOREVER_NS, MisfitRegion, RegionLayout, StrayRegion
from sonde.analysis.sample_slices import Slice, iter_slices
from sonde.analysis.torch_spans import BACKWARD, MODULES, OPERATORS, STREAM, TorchSpan
from sonde.analysis.window import Window
from sonde.store.recording import Recording

REGIONS, SAMPLES, COLLECTIVES, GC = "regions", "samples", "collectives", "garbage collector"
# The lanes of a thread, from the top.
_ORDER = (REGIONS, SAMPLES, MODULES, BACKWARD, OPERATORS, COLLECTIVES)
_SIDES = 16  # lanes side by side for collectives that overlap
# Where the numbers of a kind of lane begin, in multiples of _TIDS. Samples have the thread's own
# number; streams come last, because there may be many devices.
_PLACES = {SAMPLES: 0, REGIONS: 1, MODULES: 2, BACKWARD: 3, OPERATORS: 4, GC: 5, COLLECTIVES: 6,
           STREAM: 6 + _SIDES}  # fmt: skip
_TIDS = 2**22  # thread ids are smaller than this on Linux
_PIECE_ROWS = 1_200_000  # rows that are sorted in one piece
_NARROW_ROWS = 4_000_000  # the same for rows of a few numbers

MISFIT = pa.schema([("part", pa.int64()), ("id", pa.int64()), ("family", pa.int64()),
                    ("track", pa.int64())])  # fmt: skip
STRAY = pa.schema([("part", pa.int64()), ("id", pa.int64()), ("parent", pa.int64())])


class TimelineRow(NamedTuple):
    """One thing on the timeline; see timeline_sql.COLUMNS."""

    ph: str
    pid: int
    tid: int
    start_ns: int  # wall clock, since 1970
    dur_ns: int
    name: str
    cat: str
    args: str | None = None  # JSON
    id: str | None = None
    scope: str | None = None


class Lane(NamedTuple):
    """A process of the trace (tid 0) or one of its lanes, with its name and sort order."""

    pid: int
    tid: int
    name: str
    order: int


class Timeline:
    """What is selected, as lanes, rows, and batches of rows made by SQL."""

    def __init__(
        self, profile: Profile, windows: Sequence[Window] = (), empty: Collection[str] = ()
    ) -> None:
        self._empty = empty  # tables that are known to be empty
        self.windows = tuple(windows) or (profile.selection.window,)
        self.profile, self.recording = profile, profile.recording
        self.numbers = _number(profile.processes)
        hosts = dict.fromkeys(process.host for process in profile.processes)
        top = max([_TIDS, *self.numbers]) + 1
        self.machines = {host: top + at for at, host in enumerate(hosts)}
        self._named = profile.named_sql + _number_sql(self.numbers, self.machines)
        self._places: dict[Place, str] = {}

    def fill(
        self,
        sql: str,
        low_ns: int = 0,
        high_ns: int = FOREVER_NS,
        lane: str = REGIONS,
        which: str = "true",
    ) -> str:
        """Fill in a query of timeline_sql for what is selected and began after `low_ns` and until
        `high_ns`. `which` selects regions: `unfinished`, for example."""
        inside = [f"start_ns > {since} AND start_ns <= {until}" for since, until in self.windows]
        touches = [
            f"start_ns + dur_ns > {since} AND start_ns <= {until}" for since, until in self.windows
        ]
        return sql.format(
            named=self._named, low_ns=low_ns, high_ns=high_ns, until_ns=self.until_ns,
            low_us=max(low_ns, 0) // 1000 - self.profile.slack_us,
            high_us=min(high_ns, FOREVER_NS // 2) // 1000 + self.profile.slack_us,
            in_window=" OR ".join(inside), touches=" OR ".join(touches), which=which,
            threads=self.profile.match_threads("thread"), lane=find_tid(lane, 0),
            ever_ns=FOREVER_NS,
        )  # fmt: skip

    @cached_property
    def until_ns(self) -> int:
        """The end of the timeline, and of regions that have not ended."""
        return min(time.time_ns(), max(window.until_ns for window in self.windows))

    @cached_property
    def first_ns(self) -> int | None:
        """When the first row begins, since 1970; None if there are no rows."""
        known = [*(first for _, _, first in self._seconds[:1]), self.profile.find_first_ns()]
        return min((ns for ns in known if ns is not None), default=None)

    def iter_lanes(self) -> Iterator[Lane]:
        """Yield the processes, the machines, and the lanes of the rows that SQL makes."""
        for part, process in enumerate(self.profile.processes):
            order = part if process.rank is None else process.rank
            yield Lane(self.numbers[part], 0, process.label, order)
            tid = find_tid(GC, 0)
            yield Lane(self.numbers[part], tid, GC, len(_ORDER) * _TIDS - 1)
        for at, (host, number) in enumerate(self.machines.items()):
            yield Lane(number, 0, f"machine {host}", 10**6 + at)
        rows = self.recording.query(self.fill(timeline_sql.THREADS)).to_pylist()
        for row in rows:
            yield self._make_lane(row["part"], REGIONS, row["thread"], row["name"])

    def _make_lane(self, part: int, lane: str, thread: int, name: str, side: int = 0) -> Lane:
        tid = find_tid(lane, thread, side)
        if lane == STREAM:
            order, label = len(_ORDER) * _TIDS + side, f"GPU {side} stream {thread}"
        else:
            order = len(_ORDER) * (thread % _TIDS) + _ORDER.index(lane)
            who = f"thread {thread}" if name == "thread" else name  # the thread has no name
            label = who if lane == SAMPLES else f"{who}: {lane}"
        return Lane(self.numbers[part], tid, label, order)

    # ---- rows made by SQL ------------------------------------------------------------------------

    def iter_batches(self, wrap: str) -> Iterator[pa.RecordBatch]:
        """Yield regions, markers, counters, garbage collections and machine measures in pieces of
        time. `wrap` is a SELECT from the rows of `layer`."""
        misfits, strays = self.find_misfits()
        for low_ns, high_ns in self.cut_time():
            spans = self.fill(timeline_sql.SPANS, low_ns, high_ns)
            yield from self.stream(wrap, spans, misfit=misfits)
            yield from self.iter_points(wrap, low_ns, high_ns)
        if strays.num_rows:
            yield from self.stream(
                wrap, self.fill(timeline_sql.FLOWS), misfit=misfits, stray=strays
            )
        yield from self.iter_measures(wrap)

    def iter_points(self, wrap: str, low_ns: int, high_ns: int) -> Iterator[pa.RecordBatch]:
        """Yield markers, counters and garbage collections, each kind in the order of time."""
        for table, sql in timeline_sql.POINTS.items():
            lane = GC if table == "python.gc_pause" else REGIONS
            if table not in self._empty:
                yield from self.stream(wrap, self.fill(sql, low_ns, high_ns, lane=lane))

    def iter_measures(self, wrap: str) -> Iterator[pa.RecordBatch]:
        """Yield the measures of machines and processes: a few rows a second."""
        for table, sql in timeline_sql.MEASURES.items():
            if table not in self._empty:
                yield from self.stream(wrap, self.fill(sql))

    def stream(self, wrap: str, sql: str, **given: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a filled-in query, as `wrap` selects them."""
        for batch in self.recording.stream(wrap.replace("layer", f"({sql})"), given=given):
            if batch.num_rows:
                yield batch

    @cached_property
    def _seconds(self) -> list[tuple[int, ...]]:
        rows = self.recording.query(self.fill(timeline_sql.SECONDS))
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def cut_time(self, most: int = _PIECE_ROWS) -> Iterator[tuple[int, int]]:
        """Yield stretches of time with few enough rows to be sorted in memory."""
        low_ns, rows = 0, 0
        for second, count, _ in self._seconds:
            if rows and rows + count > most:
                yield low_ns, second * 10**9
                low_ns, rows = second * 10**9, 0
            rows += count
        yield low_ns, FOREVER_NS

    def find_misfits(self) -> tuple[pa.Table, pa.Table]:
        """Return the regions that do not nest on their thread, and those whose parent is not."""
        if self._is_plain():
            return tabulate({})
        layouts = self._feed({})
        apart = {part: layout.apart for part, layout in layouts.items() if layout.apart}
        if apart:
            # Regions that were placed before their family was found not to nest are placed again.
            layouts = self._feed(apart)
        return tabulate({part: layout.take() for part, layout in layouts.items()})

    def _is_plain(self) -> bool:
        """Tell whether all regions lie in their parents: a quick check, and nearly always true."""
        layouts: dict[int, _core.NestingCheck] = {}
        for low_ns, high_ns in self.cut_time(_NARROW_ROWS):
            for batch in self.recording.stream(self.fill(timeline_sql.NARROW, low_ns, high_ns)):
                numbers = [_view_numbers(column) for column in batch.columns]
                for part, at, end in _find_runs(numbers[0].tolist()):
                    layout = layouts.setdefault(part, _core.NestingCheck())
                    if not layout.feed(*(column[at:end] for column in numbers[1:])):
                        return False
        return True

    def _feed(self, apart: Mapping[int, set[int]]) -> dict[int, RegionLayout]:
        layouts: dict[int, RegionLayout] = {}
        for low_ns, high_ns in self.cut_time(_NARROW_ROWS):
            feed(layouts, self.recording, self.fill(timeline_sql.NARROW, low_ns, high_ns), apart)
        return layouts

    # ---- rows made by Python ---------------------------------------------------------------------

    def iter_rows(self) -> Iterator[TimelineRow | Lane]:
        """Yield samples as slices, modules, operators, kernels and collectives; each lane comes
        before its rows."""
        samples = self.iter_samples()
        for thread, group in groupby(samples, key=lambda sample: sample.thread):
            lane = self.find_lane(thread)
            yield lane
            # A viewer wants the outer slice before the inner ones that begin with it.
            yield from self.make_slices(lane, sorted(iter_slices(self.profile, group)))
        yield from self.iter_calls()

    def iter_samples(self) -> Iterator[Sample]:
        """Yield the samples in the windows, by thread and then by time."""
        for sample in self.profile.iter_samples(needed=False):
            if self._holds(sample.start_ns + sample.ns[0]):
                yield sample

    def iter_calls(self) -> Iterator[TimelineRow | Lane]:
        """Yield modules, operators, kernels and collectives."""
        yield from self._iter_spans()
        if "python.collective" not in self._empty:
            yield from self._iter_collectives()

    def _holds(self, ns: int) -> bool:
        return any(since_ns < ns <= until_ns for since_ns, until_ns in self.windows)

    def find_lane(self, thread: RecordedThread) -> Lane:
        """Return the lane of a thread's samples."""
        part = self.profile.processes.index(thread.process)
        return self._make_lane(part, SAMPLES, thread.id, thread.name)

    def make_slices(self, lane: Lane, slices: Iterable[Slice]) -> Iterator[TimelineRow]:
        """Yield slices of samples as rows."""
        for start_ns, _, end_ns, place in slices:
            about = self._places.get(place)
            if about is None:
                about = self._places[place] = _dump({"file": place.file, "line": place.line})
            dur_ns = end_ns - start_ns
            yield TimelineRow(
                "X", lane.pid, lane.tid, start_ns, dur_ns, place.func, "python", about
            )

    def _iter_spans(self) -> Iterator[TimelineRow | Lane]:
        flow = 0
        inside = (span for span in self.profile.iter_spans() if self._holds(span.start_ns))
        for _, group in groupby(inside, key=lambda span: span[:3] + span[4:5]):
            spans = list(group)
            first = spans[0]
            lane = self._make_lane(
                first.part, first.lane, first.thread, first.thread_name, first.device
            )
            yield lane
            for span, end_ns in _cut(spans):
                about = _dump({"step": span.step, **span.about})
                dur_ns = end_ns - span.start_ns
                yield TimelineRow(
                    "X", lane.pid, lane.tid, span.start_ns, dur_ns, span.label, first.lane, about
                )
                launched = span.launch_ns is not None and span.launch_thread is not None
                if span.lane == STREAM and launched:
                    flow += 1
                    launcher = find_tid(OPERATORS, span.launch_thread or 0)
                    yield _flow("s", lane.pid, launcher, span.launch_ns or 0, "ac2g", f"k{flow}")
                    yield _flow("f", lane.pid, lane.tid, span.start_ns, "ac2g", f"k{flow}")

    def _iter_collectives(self) -> Iterator[TimelineRow | Lane]:
        """Yield collectives: those of one thread that overlap side by side; those of one group and
        number linked, from the rank that came first to the one that came last."""
        rows = self.recording.query(self.fill(timeline_sql.COLLECTIVES)).to_pylist()
        for (part, thread), group in groupby(rows, key=lambda row: (row["part"], row["thread"])):
            sides: list[int] = []
            for row in group:
                free = [at for at, end_ns in enumerate(sides) if end_ns <= row["start_ns"]]
                side = free[0] if free else min(len(sides), _SIDES - 1)
                lane = self._make_lane(part, COLLECTIVES, thread or 0, row["name"], side)
                if side == len(sides):
                    yield lane
                    sides.append(0)
                sides[side] = row["start_ns"] + row["dur_ns"]
                about = {k: v for k, v in json.loads(row["args"]).items() if v is not None}
                yield TimelineRow("X", lane.pid, lane.tid, row["start_ns"], row["dur_ns"],
                                  row["op"], COLLECTIVES, _dump(about))  # fmt: skip
                if row["ranks"] > 1 and row["seq"] is not None:
                    kind = (
                        "s" if row["place"] == 1 else "f" if row["place"] == row["ranks"] else "t"
                    )
                    number = f"c{row['group_name']}.{row['seq']}.{row['op']}"
                    yield _flow(kind, lane.pid, lane.tid, row["start_ns"], "collective", number)


def feed(
    layouts: dict[int, RegionLayout], recording: Recording, sql: str, apart: Mapping[int, set[int]]
) -> None:
    """Feed the regions that a query finds to the layout of their process."""
    for batch in recording.stream(sql):
        parts, *columns = (_view_numbers(column).tolist() for column in batch.columns)
        for part, at, end in _find_runs(parts):
            layout = layouts.get(part)
            if layout is None:
                layout = layouts[part] = RegionLayout(set(apart.get(part, ())))
            layout.feed(*(column[at:end] for column in columns))


def tabulate(
    found: Mapping[int, tuple[list[MisfitRegion], list[StrayRegion]]],
) -> tuple[pa.Table, pa.Table]:
    """Return the misfits and strays of each process as tables."""
    misfits = [(part, *misfit) for part, (some, _) in found.items() for misfit in some]
    strays = [(part, *stray) for part, (_, some) in found.items() for stray in some]
    return _make_table(misfits, MISFIT), _make_table(strays, STRAY)


def _make_table(rows: Sequence[tuple[int, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=schema)


def _find_runs(parts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal numbers: the number, its first place and the place after its last."""
    at = 0
    while at < len(parts):
        end = bisect_right(parts, parts[at], at)  # the numbers are sorted
        yield parts[at], at, end
        at = end


def _view_numbers(column: pa.Array) -> memoryview:
    """Return a column of integers without NULL as it lies in memory."""
    numbers = memoryview(column.buffers()[1]).cast("q")
    return numbers[column.offset : column.offset + len(column)]


def _number(processes: list[RecordedProcess]) -> list[int]:
    """Return a number for each process: its pid, or a free one if another machine has that pid."""
    taken: list[int] = []
    for process in processes:
        number = process.pid
        while number in taken:
            number += _TIDS
        taken.append(number)
    return taken


def _number_sql(numbers: list[int], machines: Mapping[str, int]) -> str:
    parts = ", ".join(f"({part}, {number}::BIGINT)" for part, number in enumerate(numbers))
    hosts = ", ".join(
        "('" + host.replace("'", "''") + f"', {number}::BIGINT)"
        for host, number in machines.items()
    )
    return (
        f",\nnumbered(part, number) AS (VALUES {parts}),\nmachine(host, number) AS (VALUES {hosts})"
    )


def find_tid(lane: str, thread: int, side: int = 0) -> int:
    """Return the number of a lane, which no real thread has. `side` tells devices and overlapping
    collectives apart."""
    return _TIDS * (_PLACES[lane] + side) + thread % _TIDS


def _flow(ph: str, pid: int, tid: int, at_ns: int, name: str, number: str) -> TimelineRow:
    return TimelineRow(ph, pid, tid, at_ns, 0, name, name, None, number)


def _dump(about: Mapping[str, object]) -> str:
    return json.dumps(about, separators=(",", ":"))


def _cut(spans: list[TorchSpan]) -> Iterator[tuple[TorchSpan, int]]:
    """Yield each span with an end that makes them nest or, on a stream, follow each other: clocks
    and rounding may make them overlap a little, and a viewer would drop them."""
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
