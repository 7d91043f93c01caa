"""Exact calls in the form of pstats, from the newest complete publication of python.call."""

from __future__ import annotations

from collections.abc import Iterator

from sonde.session import Session
from sonde.session.pstats_file import Function, Stats
from sonde.store.recording import Recording

# Rows are cumulative and written only when they change: the newest row of each call counts.
_SQL = """
WITH newest AS (
    SELECT host, pid, MAX(publication) AS last, ARG_MAX(first, publication) AS first
    FROM python.call_publication GROUP BY host, pid
), published AS (
    SELECT call.* FROM python.call AS call JOIN newest
    ON call.host = newest.host AND call.pid = newest.pid
    AND call.publication BETWEEN newest.first AND newest.last
), final AS (
    SELECT func, file, lineno, caller, caller_file, caller_lineno,
        ARG_MAX(calls, publication) AS calls, ARG_MAX(primitive_calls, publication) AS primitive,
        ARG_MAX(own_ns, publication) AS own_ns, ARG_MAX(total_ns, publication) AS total_ns
    FROM published GROUP BY host, pid, func, file, lineno, caller, caller_file, caller_lineno
)
SELECT func, file, lineno, caller, caller_file, caller_lineno,
    CAST(SUM(calls) AS BIGINT) AS calls, CAST(SUM(primitive) AS BIGINT) AS primitive,
    SUM(own_ns) / 1e9 AS own, SUM(total_ns) / 1e9 AS total
FROM final WHERE func IS NOT NULL GROUP BY ALL
"""


def read_calls(source: Recording | Session) -> Stats:
    """Return {(file, line, name): (primitive calls, calls, own s, total s, {caller: (calls,
    primitive calls, own s, total s)})}, as pstats reads it; the sum of several processes. Empty if
    the `call` source was never on."""
    recording = Recording([source]) if isinstance(source, Session) else source
    rows = list(_read_rows(recording))
    stats: Stats = {
        callee: (primitive, calls, own, total, {})
        for callee, caller, calls, primitive, own, total in rows
        if caller is None
    }
    for callee, caller, calls, primitive, own, total in rows:
        if caller is not None and callee in stats:
            stats[callee][4][caller] = (calls, primitive, own, total)
    return stats


def _read_rows(
    recording: Recording,
) -> Iterator[tuple[Function, Function | None, int, int, float, float]]:
    for row in recording.query(_SQL).to_pylist():
        callee = (row["file"], row["lineno"], row["func"])
        caller = (row["caller_file"], row["caller_lineno"], row["caller"])
        yield (
            callee,
            None if row["caller_lineno"] is None else caller,
            row["calls"],
            row["primitive"],
            row["own"],
            row["total"],
        )
