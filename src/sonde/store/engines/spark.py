"""Spark 4, through Spark Connect: sc://host:port."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sonde.errors import MissingPart, QueryError
from sonde.store.engines._reach import check_listens, let_pandas_in
from sonde.store.remote_table import RemoteTable
from sonde.store.sql_dialect import Dialect

_PORT = 15002
_KINDS = {
    "i8": "TINYINT", "i16": "SMALLINT", "i32": "INT", "i64": "BIGINT", "u8": "SMALLINT",
    "u16": "INT", "u32": "BIGINT", "u64": "DECIMAL(20, 0)", "f64": "DOUBLE", "bool": "BOOLEAN",
    "text": "STRING", "timestamp": "TIMESTAMP",
}  # fmt: skip
_SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
DIALECT = Dialect(
    name="Spark",
    quote="`",
    has_backslash=True,
    moment="timestamp_micros({})".format,
    types={"VARCHAR": "STRING", "DOUBLE": "DOUBLE", "BIGINT": "BIGINT", "INTEGER": "INT",
           "BOOLEAN": "BOOLEAN"},
    functions={
        "any_value": "any_value({0}, true)", "arg_max": "max_by", "arg_min": "min_by",
        "contains": "contains", "ends_with": "endswith", "starts_with": "startswith",
        "quantile_cont": "percentile({0}, {1})", "epoch_us": "unix_micros",
        "epoch_ms": "unix_millis", "to_timestamp": "timestamp_seconds", "//": "({0} div {1})",
        "||": "({0} || {1})",
    },
)  # fmt: skip


class SparkEngine:
    """A session of a Spark Connect server."""

    def __init__(self, address: str) -> None:
        let_pandas_in()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the version of pandas, of which we use nothing
            try:
                from pyspark.sql import SparkSession
                from pyspark.sql.connect.session import SparkSession as _Session  # noqa: F401
            except ImportError as error:
                raise MissingPart(
                    f"{address} is asked with Spark's client, which is not installed here "
                    f"({error.name or error}): pip install 'sonde[spark]'"
                ) from None
            check_listens(address, _PORT)
            self._session: Any = _guard(lambda: SparkSession.builder.remote(address).create())
        for name, value in _SETTINGS.items():
            _guard(lambda name=name, value=value: self._session.conf.set(name, value))

    def ask(self, tables: Sequence[RemoteTable], sql: str) -> pa.Table:
        """Return the rows of a statement over these tables."""
        return _guard(lambda: self._ask(tables, sql))

    def _ask(self, tables: Sequence[RemoteTable], sql: str) -> pa.Table:
        for table in tables:
            self._open(table).createOrReplaceTempView(table.view)
        return self._session.sql(sql).toArrow()

    def _open(self, table: RemoteTable) -> Any:
        kinds = {field.name: _KINDS[field.kind] for field in table.fields}
        if not table.paths:
            empty = ", ".join(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in kinds.items())
            return self._session.sql(f"SELECT {empty} WHERE false")
        columns = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())
        paths = [path.replace("s3://", "s3a://", 1) for path in table.paths]
        rows = self._session.read.schema(columns).parquet(*paths)
        # Whole numbers without a sign are decimals to Spark, with other rules of arithmetic.
        rows = rows.selectExpr(
            *(f"CAST(`{name}` AS BIGINT) AS `{name}`" if "DECIMAL" in kind else f"`{name}`"
              for name, kind in kinds.items())
        )  # fmt: skip
        if table.sessions:
            rows = rows.filter(rows["session"].isin(list(table.sessions)))
        return rows.dropDuplicates(list(table.once)) if table.once else rows

    def cancel(self) -> None:
        """Stop what runs."""
        _guard(self._session.interruptAll)

    def close(self) -> None:
        """End the session, and with it the names of its tables."""
        _guard(self._session.stop)


def open_engine(address: str) -> SparkEngine:
    """Connect."""
    return SparkEngine(address)


def _guard(call: Any) -> Any:
    """Call Spark; its errors become ours."""
    import grpc
    from pyspark.errors import PySparkException

    try:
        return call()
    except (PySparkException, grpc.RpcError) as error:
        text = str(error)
        if "FILE_NOT_EXIST" in text or "FileNotFoundException" in text:
            raise FileNotFoundError(text) from None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise QueryError(f"Spark: {lines[0] if lines else type(error).__name__}") from None
