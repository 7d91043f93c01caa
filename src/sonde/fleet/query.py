"""SQL over a cluster: each host works out its part, and the parts are put together here."""

from __future__ import annotations

import time
from collections.abc import Mapping

import duckdb
import pyarrow as pa

from sonde.errors import QueryError
from sonde.fleet.cluster import Gathered, ask_all
from sonde.fleet.hosts import Cluster
from sonde.fleet.split_sql import ANSWERS, plan
from sonde.store import catalog
from sonde.store.combined import combine_schemas, fit_columns
from sonde.store.engine import abandoned, connect, is_too_large, run, too_large
from sonde.store.statement import CATALOG, qualify, require_select


def query_cluster(
    cluster: Cluster,
    sql: str,
    timeout_s: float,
    memory: str,
    given: Mapping[str, pa.Table] | None = None,
) -> tuple[pa.Table, Gathered]:
    """Return the rows of one SELECT over all hosts, and what is missing in them. `given` are more
    tables that it may name."""
    connection = connect(memory)
    deadline = time.monotonic() + timeout_s
    try:
        require_select(connection, sql)
        found = plan(sql)
        if found is None:  # about no table: SHOW TABLES, SELECT 1
            whole = _ask(cluster, sql, timeout_s)
            return next(iter(whole.tables.values())), whole
        missing = Gathered()
        for name, rows in (given or {}).items():
            connection.register(name, rows)
        for name, remote in found.remote.items():
            part = _ask(cluster, remote, max(0.1, deadline - time.monotonic()))
            rows = join_answers(part)
            _register(connection, name, rows, is_distinct=name in found.distinct)
            missing.failures.update(part.failures)
            missing.empty, missing.tables = part.empty, part.tables
        connection.execute("SET lock_configuration = true")
        names = {table.table.partition(".")[2] for table in catalog.list_tables()
                 if table.table.startswith("system.")}  # fmt: skip
        left_s = max(1.0, deadline - time.monotonic())
        return run(connection, qualify(found.final, names), left_s, memory), missing
    except (duckdb.Error, pa.ArrowException, MemoryError) as error:
        raise too_large(memory) if is_too_large(error) else QueryError(str(error)) from None
    finally:
        if connection not in abandoned:
            connection.close()


def _ask(cluster: Cluster, sql: str, timeout_s: float) -> Gathered:
    found = ask_all(cluster, {"request": "query", "sql": sql}, timeout_s)
    found.require_some(cluster.target)
    return found


def join_answers(found: Gathered) -> pa.Table:
    """Return the rows of all hosts as one table, in the order of the hosts."""
    tables = [found.tables[host] for host in sorted(found.tables)]
    plain = [pa.table([_decode(column) for column in one.columns], names=one.column_names)
             for one in tables]  # fmt: skip
    if all(one.schema == plain[0].schema for one in plain):
        return pa.concat_tables(plain)
    wanted = combine_schemas([one.schema for one in plain])
    return pa.concat_tables([fit_columns(one, wanted) for one in plain])


def _decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    is_coded = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_coded else column


def _register(
    connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table, *, is_distinct: bool
) -> None:
    relation = connection.from_arrow(rows)
    schema, dot, table = name.rpartition(".")
    if is_distinct:
        relation = relation.distinct()
    if dot:
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS {CATALOG}."{schema}"')
        connection.execute(f'USE {CATALOG}."{schema}"')
    relation.create_view(table if dot else ANSWERS)
    connection.execute(f"USE {CATALOG}.main")
