"""Databases that are kept between queries: nothing of one query reaches the next."""

from __future__ import annotations

import duckdb
import pytest

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
