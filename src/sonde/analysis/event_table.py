"""The sums of events in order, and as a table for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sonde.analysis.event_sums import (
    CounterSums,
    EventProcess,
    EventReport,
    MarkerSums,
    OpenRegion,
    RegionSums,
)

# The attribute that regions are sorted by. Counters and markers have few of them, and else a name.
SORTS = {"total": "total_ns", "avg": "mean_ns", "min": "min_ns", "max": "max_ns",
         "count": "count", "name": "name"}  # fmt: skip
_COUNTER_SORTS = {"avg": "mean", "min": "min", "max": "max", "count": "count"}


def sort_report(report: EventReport, by: str = "total", *, ascending: bool = False) -> EventReport:
    """Return a report with its lines sorted by a key of SORTS, the largest first."""

    def order(lines: Sequence[Any], attribute: str | None) -> list[Any]:
        named = sorted(lines, key=lambda line: (line.name, line.domain or "", _rank(line.process)))
        if attribute in (None, "name"):
            return named
        return sorted(named, key=lambda line: getattr(line, attribute), reverse=not ascending)

    return report._replace(
        regions=order(report.regions, SORTS[by]),
        counters=order(report.counters, _COUNTER_SORTS.get(by)),
        markers=order(report.markers, "count" if by == "count" else None),
    )


def _rank(process: EventProcess | None) -> tuple[int, str, int]:
    return (-1, "", 0) if process is None else (process.rank or 0, process.host, process.pid)


_COLUMNS = {
    "kind": pa.string(), "domain": pa.string(), "name": pa.string(), "host": pa.string(),
    "pid": pa.int64(), "rank": pa.int64(), "processes": pa.int64(), "count": pa.int64(),
    "rows": pa.int64(), "total_ns": pa.int64(), "share_pct": pa.float64(), "mean_ns": pa.float64(),
    "min_ns": pa.int64(), "p50_ns": pa.float64(), "p95_ns": pa.float64(), "p99_ns": pa.float64(),
    "max_ns": pa.int64(), "spread_pct": pa.float64(), "slowest_rank": pa.int64(),
    "slowest_pid": pa.int64(), "slowest_ns": pa.int64(), "last": pa.float64(), "min": pa.float64(),
    "mean": pa.float64(), "max": pa.float64(), "last_wall_ns": pa.int64(), "open": pa.bool_(),
    "open_ns": pa.int64(), "begin_wall_ns": pa.int64(), "thread": pa.int64(),
    "thread_name": pa.string(), "id": pa.int64(),
}  # fmt: skip


def make_table(report: EventReport) -> pa.Table:
    """Return a report as rows: one for each line, and one for each region that is open."""
    rows = [
        *map(_describe_region, report.regions), *map(_describe_counter, report.counters),
        *map(_describe_marker, report.markers), *map(_describe_open, report.open),
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(list(_COLUMNS.items())))


def _describe(line: Any, kind: str) -> dict[str, object]:
    process = {} if line.process is None else {
        "host": line.process.host, "pid": line.process.pid, "rank": line.process.rank,
    }  # fmt: skip
    is_open = isinstance(line, OpenRegion)
    sums = {} if is_open else {"count": line.count, "processes": line.processes}
    name = {"kind": kind, "domain": line.domain, "name": line.name, "open": is_open}
    return {**name, **process, **sums}


def _describe_region(line: RegionSums) -> dict[str, object]:
    parts = line.parts_ns or (None, None, None)
    found = {
        **_describe(line, line.kind), "rows": line.rows, "total_ns": line.total_ns,
        "share_pct": 100 * line.share, "mean_ns": line.mean_ns, "min_ns": line.min_ns,
        "max_ns": line.max_ns,
        **dict(zip(("p50_ns", "p95_ns", "p99_ns"), parts, strict=True)),
    }  # fmt: skip
    if line.slowest is not None:
        found |= {"slowest_rank": line.slowest.rank, "slowest_pid": line.slowest.pid,
                  "slowest_ns": line.slowest_ns, "spread_pct": 100 * line.spread}  # fmt: skip
    return found


def _describe_counter(line: CounterSums) -> dict[str, object]:
    return {**_describe(line, "counter"), "last": line.last, "min": line.min, "mean": line.mean,
            "max": line.max}  # fmt: skip


def _describe_marker(line: MarkerSums) -> dict[str, object]:
    return {**_describe(line, "marker"), "last_wall_ns": line.last_ns}


def _describe_open(line: OpenRegion) -> dict[str, object]:
    return {**_describe(line, line.kind), "open_ns": line.open_ns, "begin_wall_ns": line.begin_ns,
            "thread": line.thread, "thread_name": line.thread_name, "id": line.id}  # fmt: skip
