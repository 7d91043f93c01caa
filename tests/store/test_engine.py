"""Databases that are kept between queries: nothing of one query reaches the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sonde.store.archive import Segment, SegmentMemory
from sonde.store.engine import EnginePool

MEMORY = "256MiB"


def test_a_kept_database_has_no_tables_of_the_query_before_and_stays_locked() -> None:
    pool = EnginePool(1)
    try:
        with pool.lend(MEMORY) as first:
            first.execute("CREATE SCHEMA memory.python")
            first.execute("CREATE VIEW memory.python.stack AS SELECT 1 AS n")
        with pool.lend(MEMORY) as second:
            assert second is first
            with pytest.raises(duckdb.CatalogException):
                second.sql("FROM python.stack")
            with pytest.raises(duckdb.InvalidInputException, match="locked"):
                second.execute("SET enable_external_access = true")
            with pool.lend(MEMORY) as third, pool.lend("300MiB") as other:
                assert third is not first and other is not first
    finally:
        pool.close()


def test_a_database_whose_query_failed_is_not_kept() -> None:
    pool = EnginePool(1)
    with pytest.raises(ZeroDivisionError), pool.lend(MEMORY) as first:
        raise ZeroDivisionError
    with pool.lend(MEMORY) as second:
        assert second is not first
    pool.close()
    with pytest.raises(duckdb.ConnectionException):
        first.execute("SELECT 1")


def test_archived_rows_are_remembered_up_to_a_size_and_as_long_as_the_file_is_the_same(
    tmp_path: Path,
) -> None:
    def write(name: str, first: int) -> Segment:
        pq.write_table(pa.table({"n": pa.array(range(first, first + 100), pa.int64())}),
                       tmp_path / f"{name}.tmp")  # fmt: skip
        (tmp_path / f"{name}.tmp").rename(tmp_path / name)
        return Segment(str(tmp_path / name), 0, 100, 0, 0)

    memory = SegmentMemory(1000)  # one of them
    one, other = write("one", 0), write("other", 0)
    known = memory.read(one)
    assert memory.read(one) is known
    assert memory.read(other).equals(known)
    assert memory.read(one) is not known  # the other took its place
    assert memory.read(write("one", 7))["n"][0].as_py() == 7


LIMITED = """
import threading
import pyarrow as pa
from sonde.store.engine import limited
own = pa.default_memory_pool()  # what some of Arrow's functions use, whatever is set
with limited("1GiB"):
    kept = pa.allocate_buffer(1 << 20, memory_pool=own)
    gate = threading.Event()
    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(12)]
    for thread in threads: thread.start()
    gate.set()
    for thread in threads: thread.join()
print("fine")
"""


def test_what_arrow_reserves_does_not_count_against_the_limit() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
