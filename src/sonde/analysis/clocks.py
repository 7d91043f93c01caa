"""How far the clocks of hosts are apart, told by the collectives that their ranks have in common.

A collective in which all ranks wait for each other ends on no rank before the last one has come. So
if a rank of host A saw it end at one time of its clock, and a rank of host B had come at another
time of its own, B's clock is ahead of A's by no less than the difference. Each collective bounds
the offset from both sides; the narrowest bounds of all count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sonde.analysis.profile import quote
from sonde.analysis.window import Window
from sonde.session import Session
from sonde.store.recording import Recording
from sonde.words import count_things, show_duration


class HostClock(NamedTuple):
    """How far the clock of a host is ahead, and by how much that may be wrong."""

    ahead_ns: int
    error_ns: int


def find_clocks(recording: Recording, window: Window) -> dict[str, HostClock]:
    """Return the clocks of hosts as far as they are known, beside that of the first rank's host."""
    sessions = sorted(recording.sessions, key=lambda one: (one.rank is None, one.rank or 0))
    first = sessions[0].host
    if all(one.host == first for one in sessions):
        return {}
    sql = _SQL.format(
        processes=", ".join(_list_offsets(sessions)), first=quote(first),
        since_us=window.since_ns // 1000, until_us=window.until_ns // 1000 + 1,
    )  # fmt: skip
    rows = recording.query(sql).to_pylist()
    found = {
        row["host"]: HostClock((row["low_ns"] + row["high_ns"]) // 2,
                               abs(row["high_ns"] - row["low_ns"]) // 2 + 1)
        for row in rows
    }  # fmt: skip
    return {first: HostClock(0, 0), **found}


def correct_clocks(recording: Recording, window: Window) -> str:
    """Have all rows of a recording be placed by one clock, where it is known; return a sentence
    about it, empty if all rows are of one host."""
    hosts = dict.fromkeys(session.host for session in recording.sessions)
    if len(hosts) < 2:
        return ""
    clocks = find_clocks(recording, window)
    for session in recording.sessions:
        known = session.clock or clocks.get(session.host)
        if known is not None:
            session.ahead_ns = known[0]
            clocks.setdefault(session.host, HostClock(*known))
    unknown = len(hosts.keys() - clocks.keys())
    rest = f"; those of {count_things(unknown, 'host')} are not known and stay" if unknown else ""
    if len(clocks) < 2:
        return "the clocks of the hosts are not known to be apart: no collectives of gloo or MPI"
    most = max(abs(one.ahead_ns) for one in clocks.values())
    error = max(one.error_ns for one in clocks.values())
    return (f"the clocks of {len(clocks)} hosts are up to {show_duration(most)} apart, known to "
            f"± {show_duration(error)}; their rows are placed by one clock{rest}")  # fmt: skip


def _list_offsets(sessions: Iterable[Session]) -> Iterable[str]:
    for one in sessions:
        yield f"({quote(one.host)}, {one.pid}, {one.wall_offset_ns})"


# What a device does (NCCL) has ended later than its rows say, so only others count.
_SQL = """\
WITH process(host, pid, offset_ns) AS (VALUES {processes}),
call AS (
    SELECT host, group_name, group_ranks, seq, op, MAX(t_ns + offset_ns) AS come_ns,
        MIN(t_ns + dur_ns + offset_ns) AS end_ns
    FROM python.collective JOIN process USING (host, pid)
    WHERE state = 'ended' AND backend IN ('gloo', 'mpi') AND device_dur_ns IS NULL
        AND op IN ('all_reduce', 'allreduce', 'barrier', 'all_gather', 'allgather',
                   'reduce_scatter', 'all_to_all', 'alltoall')
        AND group_size > 1 AND seq IS NOT NULL
        AND ts > make_timestamptz({since_us}) AND ts <= make_timestamptz({until_us})
    GROUP BY ALL)
SELECT b.host, MAX(b.come_ns - a.end_ns)::BIGINT AS low_ns,
    MIN(b.end_ns - a.come_ns)::BIGINT AS high_ns
FROM call a JOIN call b USING (group_name, group_ranks, seq, op)
WHERE a.host = {first} AND b.host <> {first} GROUP BY b.host
"""
