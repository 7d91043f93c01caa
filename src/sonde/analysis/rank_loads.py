"""What every process of a large job did lately, from its tables: made host by host, so that a
thousand ranks can be asked at once.

Each SELECT has one row for each process and thing, so a cluster's hosts answer for their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from sonde.analysis.profile import quote
from sonde.errors import ConfigError
from sonde.session import Session
from sonde.store.recording import Recording
from sonde.store.shared_session import DistantSession
from sonde.words import find_pct

_VIEWS = {"functions": "first_line", "lines": "lineno"}
_WEIGHTS = {"wall": "wall_ns", "cpu": "cpu_ns", "gil": "CASE WHEN gil THEN wall_ns ELSE 0 END"}


class RankUnit(NamedTuple):
    """A function, or a line of one."""

    func: str
    file: str
    line: int


@dataclass
class RankLoad:
    """What one process did in the window."""

    session: Session
    span_ns: int
    working_ns: int = 0  # of all threads
    waiting_ns: int = 0  # of the main thread
    cpu_ns: int = 0
    steps: int = 0
    step_ns: float | None = None  # a mean step
    whole_ns: int = 0  # the sum of what is weighed
    units: dict[RankUnit, tuple[int, int]] = field(default_factory=dict)  # self and total

    @property
    def name(self) -> str:
        """How people call it."""
        one = self.session
        return f"{one.host} pid {one.pid}" if one.rank is None else f"rank {one.rank}"

    def find_self_pct(self, unit: RankUnit) -> float:
        return find_pct(self.units.get(unit, (0, 0))[0], self.whole_ns)


class Extremes(NamedTuple):
    """A number of all processes: the one in the middle, and who has the least and the most."""

    middle: float
    least: float
    least_of: RankLoad
    most: float
    most_of: RankLoad
    spread_pct: float  # between the two, in percent of the mean


def find_extremes(values: Iterable[tuple[float | None, RankLoad]]) -> Extremes | None:
    """Return the extremes of a number; None if fewer than two processes have it."""
    known = [(value, load) for value, load in values if value is not None]
    if len(known) < 2:
        return None
    least, most = min(known, key=lambda one: one[0]), max(known, key=lambda one: one[0])
    numbers = [value for value, _load in known]
    spread = find_pct(most[0] - least[0], fmean(numbers))
    return Extremes(median(numbers), *least, *most, spread)


def read_loads(
    recording: Recording, window_s: float | None, weight: str, view: str, *, idle: bool
) -> list[RankLoad]:
    """Return what each process that runs did in the last `window_s` seconds; None is since its
    start. If none runs any more, it is the time before the end of each. `idle` also weighs threads
    that slept or waited."""
    if view not in _VIEWS:
        raise ConfigError(f"--view {view} is for the recordings of this machine")
    running = [one for one in recording.sessions if one.find_state() == "running"]
    loads = [_make_load(one, window_s) for one in running or recording.sessions]
    counts = "true" if idle or weight != "wall" else "NOT idle"
    parts = {"processes": ", ".join(_list_parts(loads)), "weight": _WEIGHTS[weight],
             "counts": counts, "line": _VIEWS[view],
             "since_us": min(_find_since(one) for one in loads) // 1000}  # fmt: skip
    for row in recording.query_each(_TOTALS.format_map(parts)).to_pylist():
        load = loads[row["part"]]
        load.working_ns, load.waiting_ns = row["working_ns"], row["waiting_ns"]
        load.cpu_ns, load.whole_ns = row["cpu_ns"], row["whole_ns"]
        load.steps, load.step_ns = row["steps"] or 0, row["step_ns"]
    for row in recording.query_each(_UNITS.format_map(parts)).to_pylist():
        unit = RankUnit(row["func"], row["file"], row["line"])
        loads[row["part"]].units[unit] = row["self_ns"] or 0, row["total_ns"]
    return loads


def sum_units(loads: Sequence[RankLoad]) -> dict[RankUnit, tuple[int, int]]:
    """Return the self and total time of every function or line in all processes."""
    sums: dict[RankUnit, tuple[int, int]] = {}
    for load in loads:
        for unit, (own, total) in load.units.items():
            before = sums.get(unit, (0, 0))
            sums[unit] = before[0] + own, before[1] + total
    return sums


def list_missing_ranks(loads: Sequence[RankLoad]) -> list[int]:
    """Return the ranks that the job should have, as its processes say, and that are not here."""
    sizes = {load.session.rank: load.session.meta.world_size or 0
             for load in loads if load.session.rank is not None}  # fmt: skip
    return sorted(set(range(max(sizes.values(), default=0))) - sizes.keys())


def _make_load(session: Session, window_s: float | None) -> RankLoad:
    assert isinstance(session, DistantSession)
    whole_ns = max(1, session.end_wall_ns - session.start_wall_ns)
    return RankLoad(session, whole_ns if window_s is None else min(whole_ns, round(window_s * 1e9)))


def _find_since(load: RankLoad) -> int:
    assert isinstance(load.session, DistantSession)
    return load.session.end_wall_ns - load.span_ns


def _list_parts(loads: Sequence[RankLoad]) -> Iterable[str]:
    for part, load in enumerate(loads):
        since_us = _find_since(load) // 1000
        until_us = since_us + load.span_ns // 1000 + 1
        who = f"{quote(load.session.host)}, {load.session.pid}"
        yield f"({part}, {who}, {since_us}, {until_us})"


_SAMPLES = """\
WITH process(part, host, pid, since_us, until_us) AS (VALUES {processes}),
sample AS MATERIALIZED (
    SELECT part, pid, stack, thread, idle, gil, SUM(wall_ns) AS wall_ns, SUM(cpu_ns) AS cpu_ns
    FROM python.stack_sample JOIN process USING (host, pid)
    WHERE ts > make_timestamptz({since_us}) AND ts > make_timestamptz(since_us)
        AND ts <= make_timestamptz(until_us)
    GROUP BY ALL),
"""
_TOTALS = (
    _SAMPLES
    + """\
step AS (
    SELECT part, COUNT(*) AS steps, AVG(dur_ns) AS step_ns
    FROM python.torch_step JOIN process USING (host, pid)
    WHERE ts > make_timestamptz({since_us}) AND ts > make_timestamptz(since_us)
        AND ts <= make_timestamptz(until_us)
    GROUP BY ALL)
SELECT part, COALESCE(SUM(wall_ns) FILTER (NOT idle), 0)::BIGINT AS working_ns,
    COALESCE(SUM(wall_ns) FILTER (idle AND thread = pid), 0)::BIGINT AS waiting_ns,
    SUM(cpu_ns)::BIGINT AS cpu_ns,
    COALESCE(SUM({weight}) FILTER ({counts}), 0)::BIGINT AS whole_ns,
    any_value(steps) AS steps, any_value(step_ns) AS step_ns
FROM sample LEFT JOIN step USING (part) GROUP BY part
"""
)
_UNITS = (
    _SAMPLES
    + """\
weighed AS (SELECT part, stack, SUM({weight}) AS ns FROM sample WHERE {counts} GROUP BY ALL),
unit AS (
    SELECT stack, func, file, {line} AS line, MIN(depth) AS depth FROM python.frame GROUP BY ALL)
SELECT part, func, file, line, (SUM(ns) FILTER (depth = 0))::BIGINT AS self_ns,
    SUM(ns)::BIGINT AS total_ns
FROM weighed JOIN unit USING (stack) WHERE ns > 0 GROUP BY ALL
"""
)
