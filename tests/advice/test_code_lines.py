"""The line of code that a finding names, of the processes of a job with ranks."""

from __future__ import annotations

from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest

from sonde.advice.code_lines import find_lines
from sonde.advice.period import Period

PERIOD = Period(start_ns=0, piece_s=10.0, count=1, warm_up_s=0.0, job_gpu="FALSE", length_s=10.0)


class Samples:
    """A launcher that waits for nine seconds in stack 1, and a process that waits for five in
    stack 2."""

    def __init__(self, rank: int | None) -> None:
        self.sessions = [SimpleNamespace(rank=None), SimpleNamespace(rank=rank)]
        self.connection = duckdb.connect()
        self.connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
            "CREATE TABLE python.torch_worker(host TEXT, pid INT, process INT);"
            "CREATE TABLE python.stack_sample(ts TIMESTAMPTZ, pid INT, thread INT, rank INT, "
            "stack INT, idle BOOL, wall_ns BIGINT, host TEXT DEFAULT 'a');"
            "INSERT INTO python.frame VALUES (1, 0, 'main', '/job/train.py', 90), "
            "(2, 0, 'train', '/job/train.py', 20);"
            "INSERT INTO python.stack_sample VALUES "
            "(make_timestamptz(1000000), 7, 7, NULL, 1, TRUE, 9000000000, 'a'),"
            f"(make_timestamptz(1000000), 8, 8, {'NULL' if rank is None else rank}, 2, TRUE, 5000000000, 'a')"
        )

    def query(self, sql: str) -> pa.Table:
        found = self.connection.execute(sql)
        names = [column[0] for column in found.description]
        return pa.Table.from_pylist(
            [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        )


@pytest.mark.parametrize(("rank", "line"), [(0, "20 in train"), (None, "90 in main")])
def test_a_launcher_that_waits_for_its_ranks_is_not_named(rank: int | None, line: str) -> None:
    samples = Samples(rank)
    (found,) = find_lines(samples, PERIOD, [("waiting", [0])])  # type: ignore[arg-type]
    samples.connection.close()
    assert line in found


def test_a_worker_that_loads_data_is_not_named_for_the_loop() -> None:
    samples = Samples(None)
    samples.connection.execute("INSERT INTO python.torch_worker VALUES ('a', 8, 7)")
    (found,) = find_lines(samples, PERIOD, [("waiting", [0])])  # type: ignore[arg-type]
    samples.connection.close()
    assert "20 in train" in found
