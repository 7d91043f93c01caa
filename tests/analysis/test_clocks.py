"""Clocks of hosts: told apart by the collectives that their ranks have in common."""

from __future__ import annotations

from types import SimpleNamespace

import duckdb

from sonde.analysis.clocks import correct_clocks, find_clocks
from sonde.analysis.window import Window

WINDOW = Window(0, 10**18)
MS = 10**6


class Ranks:
    """Two ranks on two hosts; the second host's clock is ahead."""

    def __init__(self, ahead_ns: int, backend: str = "gloo") -> None:
        self.sessions = [
            SimpleNamespace(host=f"node{at}", pid=at, rank=at, wall_offset_ns=10**9 * at,
                            ahead_ns=0, clock=None)
            for at in range(2)
        ]  # fmt: skip
        rows = []
        for seq in range(1, 50):
            # Each comes up to 9 ms late, and the collective ends 1 ms after the last has come.
            come = [seq * 100 * MS + seq * 7 % 10 * MS, seq * 100 * MS + seq * 3 % 10 * MS]
            for at in range(2):
                skew = ahead_ns if at else 0
                t_ns = come[at] + skew - 10**9 * at
                rows.append((f"node{at}", at, t_ns, max(come) + MS - come[at], seq, backend))
        values = ", ".join(
            f"('{host}', {pid}, {t_ns}::BIGINT, {dur}::BIGINT, {seq}, '{backend}')"
            for host, pid, t_ns, dur, seq, backend in rows
        )
        self._connection = duckdb.connect()
        self._connection.execute("CREATE SCHEMA python")
        self._connection.execute(
            "CREATE TABLE python.collective AS SELECT *, '0' AS group_name, '0,1' AS group_ranks, "
            "'ended' AS state, NULL AS device_dur_ns, 'all_reduce' AS op, 2 AS group_size, "
            "make_timestamptz(1000000) AS ts "
            f"FROM (VALUES {values}) AS t(host, pid, t_ns, dur_ns, seq, backend)"
        )

    def query(self, sql: str) -> object:
        return self._connection.sql(sql).to_arrow_table()


def test_the_offset_of_a_clock_lies_within_its_bounds() -> None:
    for ahead_ns in (0, 3 * 10**9, -40 * MS):
        found = find_clocks(Ranks(ahead_ns), WINDOW)["node1"]
        assert abs(found.ahead_ns - ahead_ns) <= found.error_ns <= 2 * MS


def test_what_a_device_does_tells_nothing_and_agents_tell_more() -> None:
    ranks = Ranks(5 * MS, "nccl")
    assert "not known to be apart" in correct_clocks(ranks, WINDOW)
    ranks.sessions[1].clock = (5 * MS, 1000)
    said = correct_clocks(ranks, WINDOW)
    assert "up to 5.00 ms apart" in said and "± 1.00 µs" in said
    assert [one.ahead_ns for one in ranks.sessions] == [0, 5 * MS]


def test_one_host_has_one_clock() -> None:
    ranks = Ranks(0)
    for one in ranks.sessions:
        one.host = "node0"
    assert find_clocks(ranks, WINDOW) == {} and correct_clocks(ranks, WINDOW) == ""
