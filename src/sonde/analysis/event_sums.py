"""Sums of a program's regions, counters and markers, by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sonde.analysis.window import Window
from sonde.store.recording import Recording

# The time of the newest event, for recordings that have ended; see window.find_window.
LAST = """
    SELECT MAX(us) AS us FROM (
        SELECT epoch_us(ts) + dur_ns // 1000 + 1 AS us FROM event.span
        UNION ALL SELECT epoch_us(ts) FROM event.counter
        UNION ALL SELECT epoch_us(ts) FROM event.marker)"""
BUCKETS = 24  # points of a counter's curve
_SUMS = """
    SELECT kind, domain, name, host, pid, rank, count, total_ns, min_ns, max_ns, min, max, mean,
           last, since_t_ns
    FROM event.summary WHERE {named}"""
_SPANS = """
    SELECT kind, domain, name, host, pid, rank, COUNT(*) AS count,
           SUM(dur_ns - paused_ns)::BIGINT AS total_ns,
           MIN(dur_ns - paused_ns) AS min_ns, MAX(dur_ns - paused_ns) AS max_ns
    FROM event.span WHERE {named} AND {ended} GROUP BY ALL"""
_PERCENTILES = """
    SELECT kind, domain, name{process}, COUNT(*) AS rows,
           QUANTILE_CONT(dur_ns - paused_ns, [0.5, 0.95, 0.99]) AS parts
    FROM event.span WHERE {named} AND {ended} GROUP BY ALL"""
# A value holds until the next one, or to the end of the window.
_VALUES = """
    WITH held AS (
        SELECT *, epoch_us(ts) * 1000 AS t, LEAD(epoch_us(ts) * 1000, 1, {until}) OVER
               (PARTITION BY domain, name, host, pid ORDER BY t_ns) AS until
        FROM event.counter WHERE {named} AND epoch_us(ts) * 1000 <= {until}),
    cut AS (SELECT *, until - GREATEST(t, {since}) AS lasts FROM held WHERE until > {since})
    SELECT 'counter' AS kind, domain, name, host, pid, rank, COUNT(*) FILTER (t > {since}) AS count,
           COALESCE(MIN(value) FILTER (NOT isnan(value)), 'nan') AS min,
           COALESCE(MAX(value) FILTER (NOT isnan(value)), 'nan') AS max,
           ARG_MAX(value, t_ns) AS last,
           COALESCE(SUM(value * lasts) FILTER (isfinite(value))
               / NULLIF(SUM(lasts) FILTER (isfinite(value)), 0), AVG(value)) AS mean
    FROM cut GROUP BY ALL HAVING COUNT(*) FILTER (t > {since}) > 0"""
_CURVE = """
    WITH placed AS (
        SELECT *, LEAST({buckets} - 1, ((epoch_us(ts) * 1000 - {since}) * {buckets}) // {length})
               AS bucket
        FROM event.counter WHERE {named} AND {during}),
    ends AS (SELECT domain, name, host, pid, bucket, ARG_MAX(value, t_ns) AS value
             FROM placed GROUP BY ALL)
    SELECT 'counter' AS kind, domain, name{process}, bucket, AVG(value) AS value
    FROM ends GROUP BY ALL"""
_MARKS = """
    SELECT 'marker' AS kind, domain, name, host, pid, rank, COUNT(*) AS count,
           epoch_us(MAX(ts)) * 1000 AS last_ns
    FROM event.marker WHERE {named} AND {during} GROUP BY ALL"""
_OPEN = """
    WITH threads AS (SELECT host, pid, thread, ARG_MAX(name, t_ns) AS thread_name
                     FROM python.thread WHERE name IS NOT NULL GROUP BY ALL)
    SELECT kind, domain, name, host, pid, rank, thread, thread_name, t_ns, id
    FROM event.open_span LEFT JOIN threads USING (host, pid, thread) WHERE {named}"""
_PROCESSES = "SELECT host, pid, rank, state, start_wall_ns, end_wall_ns FROM sonde.session"
_LAST_SEEN = """
    SELECT host, pid, epoch_us(MAX(ts)) * 1000 AS last_ns FROM (
        SELECT host, pid, ts + to_microseconds(dur_ns // 1000) AS ts FROM event.span
        UNION ALL SELECT host, pid, ts FROM event.counter
        UNION ALL SELECT host, pid, ts FROM event.marker
        UNION ALL SELECT host, pid, ts FROM python.stack_sample)
    GROUP BY ALL"""
_ALL = "".join((_SUMS, _SPANS, _VALUES, _MARKS, _OPEN, _PROCESSES, _LAST_SEEN))

Row = dict[str, Any]
Name = tuple[str, str | None, str]  # kind, domain and name


class EventSelection(NamedTuple):
    """Which events to sum up, and how."""

    window: Window | None = None  # only events in it, from rows; None: all events, from exact sums
    pattern: str | None = None  # a regular expression that names match
    by_process: bool = False  # one line for each process instead of one for all


class EventProcess(NamedTuple):
    """A recorded process; its times are wall clock."""

    host: str
    pid: int
    rank: int | None
    is_running: bool
    start_ns: int
    end_ns: int  # now, while it runs
    offset_ns: int  # from its monotonic clock to the wall clock


@dataclass(frozen=True)
class RegionSums:
    """All ended regions of one name, of one process or of all."""

    kind: str
    domain: str | None
    name: str
    process: EventProcess | None
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    rows: int  # regions whose rows are still there: percentiles are of these
    parts_ns: Sequence[float] | None  # the 50th, 95th and 99th percentile
    share: float  # of the time of its processes
    processes: int
    slowest: EventProcess | None  # the process with the most time, if there are several
    slowest_ns: int
    spread: float  # difference between the most and the least, relative to the mean

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0


@dataclass(frozen=True)
class CounterSums:
    """A counter; of several processes, `last` and `mean` are the means of theirs."""

    domain: str | None
    name: str
    process: EventProcess | None
    count: int
    last: float
    min: float
    mean: float
    max: float
    curve: list[float | None]
    processes: int


@dataclass(frozen=True)
class MarkerSums:
    """A marker; `last_ns` is wall clock."""

    domain: str | None
    name: str
    process: EventProcess | None
    count: int
    last_ns: int | None
    processes: int


class OpenRegion(NamedTuple):
    """A region that has begun and not ended."""

    kind: str
    domain: str | None
    name: str
    process: EventProcess
    thread: int
    thread_name: str | None
    id: int
    begin_ns: int
    open_ns: int
    is_long: bool  # longer than any ended region of its name, or 10 s if none has ended


class EventReport(NamedTuple):
    """The sums of all events, and the regions that are open."""

    regions: list[RegionSums]
    counters: list[CounterSums]
    markers: list[MarkerSums]
    open: list[OpenRegion]
    processes: list[EventProcess]


def read_report(
    recording: Recording, selection: EventSelection, now_ns: int | None = None
) -> EventReport:
    """Return the sums of the selected events, and the regions that are open now."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    with recording.freeze(_ALL) as frozen:
        return _SumReader(frozen, selection, now_ns).read()


class _SumReader:
    """Queries one recording; `{named}` and the like in the SQL are the selection."""

    def __init__(self, recording: Recording, selection: EventSelection, now_ns: int) -> None:
        self._recording, self._selection = recording, selection
        self._processes = {(one.host, one.pid): one for one in self._list_processes(now_ns)}
        self._since, self._until = since, until = selection.window or Window(0, now_ns)
        pattern = selection.pattern
        named = "TRUE" if pattern is None else f"regexp_matches(name, {_quote(pattern)})"
        ns = "epoch_us(ts) * 1000"
        self._words = {
            "named": named, "since": since, "until": until,
            "process": ", host, pid" if selection.by_process else "",
            "during": f"{ns} > {since} AND {ns} <= {until}",
            "ended": f"{ns} + dur_ns > {since} AND {ns} + dur_ns <= {until}",
        }  # fmt: skip
        if selection.window is None:
            self._words["during"] = self._words["ended"] = "TRUE"

    def read(self) -> EventReport:
        sums = None if self._selection.window else self._ask(_SUMS)
        regions = self._ask(_SPANS) if sums is None else [r for r in sums if _is_region(r)]
        values = self._ask(_VALUES) if sums is None else [r for r in sums if r["kind"] == "counter"]
        marks = self._list_marks(sums)
        elapsed = self._measure(sums)
        found = self._list_regions(regions, elapsed)
        return EventReport(
            found, self._list_counters(values), marks, self._list_open(regions),
            list(self._processes.values()),
        )  # fmt: skip

    def _ask(self, sql: str, **words: object) -> list[Row]:
        rows = self._recording.query(sql.format(**{**self._words, **words}))
        return [row for row in rows.to_pylist() if ("pid" not in row or self._has(row))]

    def _has(self, row: Row) -> bool:
        return (row["host"], row["pid"]) in self._processes

    def _of(self, row: Row) -> EventProcess:
        return self._processes[row["host"], row["pid"]]

    def _list_processes(self, now_ns: int) -> Iterator[EventProcess]:
        offsets = {(one.host, one.pid): one.wall_offset_ns for one in self._recording.sessions}
        rows = self._recording.query(_PROCESSES).to_pylist()
        seen = {}
        if any(row["state"] != "running" and row["end_wall_ns"] is None for row in rows):
            # Killed: it was alive when it last wrote something.
            last = self._recording.query(_LAST_SEEN).to_pylist()
            seen = {(row["host"], row["pid"]): row["last_ns"] for row in last}
        for row in rows:
            key, is_running = (row["host"], row["pid"]), row["state"] == "running"
            end_ns = now_ns if is_running else row["end_wall_ns"] or seen.get(key) or now_ns
            yield EventProcess(
                *key, row["rank"], is_running, row["start_wall_ns"], end_ns, offsets[key]
            )

    def _measure(self, sums: list[Row] | None) -> dict[EventProcess, int]:
        """Return for how long each process was observed."""
        if sums is None:
            return {one: max(0, min(self._until, one.end_ns) - max(self._since, one.start_ns))
                    for one in self._processes.values()}  # fmt: skip
        begun = {one: one.end_ns for one in self._processes.values()}
        for row in sums:
            one = self._of(row)
            begun[one] = min(begun[one], row["since_t_ns"] + one.offset_ns)
        return {one: one.end_ns - since for one, since in begun.items()}

    # ---- lines -----------------------------------------------------------------------------

    def _group(self, rows: list[Row]) -> Iterator[tuple[Name, EventProcess | None, list[Row]]]:
        """Yield the rows of each line, with their name, and their process if it is one."""
        groups: dict[tuple[Name, object], list[Row]] = {}
        for row in rows:
            groups.setdefault((_name(row), self._whose(row)), []).append(row)
        alone = len(self._processes) == 1 or self._selection.by_process
        for (name, _whose), group in groups.items():
            yield name, self._of(group[0]) if alone else None, group

    def _whose(self, row: Row) -> object:
        return (row["host"], row["pid"]) if self._selection.by_process else None

    def _list_regions(self, rows: list[Row], elapsed: dict[EventProcess, int]) -> list[RegionSums]:
        parts = {(_name(row), self._whose(row)): (row["rows"], row["parts"])
                 for row in self._ask(_PERCENTILES)}  # fmt: skip
        found = []
        for name, process, group in self._group(rows):
            totals = [row["total_ns"] for row in group]
            slow = max(group, key=lambda row: row["total_ns"])
            whole = sum(elapsed[self._of(row)] for row in group)
            mean = sum(totals) / len(totals)
            found.append(RegionSums(
                *name, process, sum(row["count"] for row in group), sum(totals),
                min(row["min_ns"] for row in group), max(row["max_ns"] for row in group),
                *parts.get((name, self._whose(group[0])), (0, None)),
                sum(totals) / whole if whole else 0.0, len(group),
                self._of(slow) if len(group) > 1 else None, slow["total_ns"],
                (max(totals) - min(totals)) / mean if mean else 0.0,
            ))  # fmt: skip
        return found

    def _list_counters(self, rows: list[Row]) -> list[CounterSums]:
        curves = self._read_curves() if rows else {}
        found = []
        for name, process, group in self._group(rows):
            found.append(CounterSums(
                *name[1:], process, sum(row["count"] for row in group), _mean(group, "last"),
                min(row["min"] for row in group), _mean(group, "mean"),
                max(row["max"] for row in group),
                curves.get((name, self._whose(group[0])), []), len(group),
            ))  # fmt: skip
        return found

    def _read_curves(self) -> dict[Any, list[float | None]]:
        """Return the curve of each counter: its value at the end of each bucket of time."""
        since, until = self._selection.window or (
            min(one.start_ns for one in self._processes.values()),
            max(one.end_ns for one in self._processes.values()),
        )
        length = max(1, until - since)
        curves: dict[Any, list[float | None]] = {}
        for row in self._ask(_CURVE, buckets=BUCKETS, since=since, length=length):
            key = (_name(row), self._whose(row))
            curves.setdefault(key, [None] * BUCKETS)[max(0, row["bucket"])] = row["value"]
        return {key: _hold(curve) for key, curve in curves.items()}

    def _list_marks(self, sums: list[Row] | None) -> list[MarkerSums]:
        rows = self._ask(_MARKS)
        if sums is not None:
            last = {_key(row): row["last_ns"] for row in rows}
            rows = [{**row, "last_ns": last.get(_key(row))} for row in sums
                    if row["kind"] == "marker"]  # fmt: skip
        found = []
        for name, process, group in self._group(rows):
            last_ns = max((row["last_ns"] for row in group if row["last_ns"]), default=None)
            count = sum(row["count"] for row in group)
            found.append(MarkerSums(*name[1:], process, count, last_ns, len(group)))
        return found

    def _list_open(self, regions: list[Row]) -> list[OpenRegion]:
        longest: dict[Name, int] = {}
        for row in regions:
            key = _name(row)
            longest[key] = max(longest.get(key, 0), row["max_ns"])
        found = []
        for row in self._ask(_OPEN):
            one, key = self._of(row), _name(row)
            begin_ns = row["t_ns"] + one.offset_ns
            open_ns = max(0, one.end_ns - begin_ns)
            found.append(OpenRegion(
                *key, one, row["thread"], row["thread_name"], row["id"], begin_ns, open_ns,
                open_ns > max(longest.get(key, 10 * 10**9), 10**9),
            ))  # fmt: skip
        return sorted(found, key=lambda one: -one.open_ns)


def _is_region(row: Row) -> bool:
    return row["kind"] not in ("counter", "marker") and row["count"] > 0


def _name(row: Row) -> Name:
    """Return how a line is named: with a question mark if its name found no room."""
    return row["kind"], row["domain"], "?" if row["name"] is None else row["name"]


def _key(row: Row) -> tuple[object, ...]:
    return row["domain"], row["name"], row["host"], row["pid"]


def _mean(rows: Sequence[Row], column: str) -> float:
    if len(rows) == 1:
        return float(rows[0][column])
    return float(sum(row[column] for row in rows) / len(rows))


def _hold(curve: list[float | None]) -> list[float | None]:
    """Fill each gap with the value before it."""
    for at in range(1, len(curve)):
        if curve[at] is None:
            curve[at] = curve[at - 1]
    return curve


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
