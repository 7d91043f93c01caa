"""Daft on Ray, for clusters that run Ray: ray://host:port."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from sonde.errors import MissingPart, QueryError
from sonde.store.engines._reach import check_listens, let_pandas_in
from sonde.store.remote_table import RemoteTable
from sonde.store.sql_dialect import Dialect

_PORT = 10001
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_KINDS = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "int16", "u16": "int32",
    "u32": "int64", "u64": "int64", "f64": "float64", "bool": "bool", "text": "string",
}  # fmt: skip


def _write_moment(us: int) -> str:
    text = (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S.%f +0000")
    return f"to_datetime('{text}', '%Y-%m-%d %H:%M:%S%.f %z', 'UTC')"


DIALECT = Dialect(
    name="Daft",
    quote='"',
    has_filter=False,
    mixes_names=True,
    moment=_write_moment,
    types={"VARCHAR": "VARCHAR", "DOUBLE": "DOUBLE", "BIGINT": "BIGINT", "INTEGER": "INT",
           "BOOLEAN": "BOOLEAN"},
    functions={
        "any_value": "min", "contains": "contains", "ends_with": "ends_with",
        "starts_with": "starts_with", "epoch_us": "to_unix_epoch({0}, 'us')",
        "epoch_ms": "to_unix_epoch({0}, 'ms')", "||": "concat({0}, {1})",
        "nullif": "CASE WHEN ({0} = {1}) THEN NULL ELSE {0} END",
        "greatest": "CASE WHEN ({0} IS NULL OR {1} > {0}) THEN {1} ELSE {0} END",
        "least": "CASE WHEN ({0} IS NULL OR {1} < {0}) THEN {1} ELSE {0} END",
        "//": "CAST(ROUND(({0} - {0} % {1}) / {1}) AS BIGINT)", "CROSS": ", ",
    },
    lacks=frozenset({
        "* EXCLUDE", "EXCEPT", "EXISTS", "QUALIFY", "arg_max", "arg_min", "first_value",
        "last_value", "ltrim", "quantile_cont", "rtrim", "trim",
    }),
)  # fmt: skip


class RayEngine:
    """Daft, whose work is done by a Ray cluster."""

    def __init__(self, address: str) -> None:
        let_pandas_in()
        try:
            import daft
            import ray
        except ImportError as error:
            raise MissingPart(
                f"{address} is asked with Daft and Ray's client, which are not installed here "
                f"({error.name or error}): pip install 'sonde[ray]'"
            ) from None
        check_listens(address, _PORT)
        self._daft: Any = daft
        self._ray: Any = ray
        with _own_errors():
            if not ray.is_initialized():  # Daft has one connection for the life of a process
                ray.init(address, log_to_driver=False, logging_level="ERROR")
            daft.set_runner_ray(noop_if_initialized=True)

    def ask(self, tables: Sequence[RemoteTable], sql: str) -> pa.Table:
        """Return the rows of a statement over these tables."""
        with _own_errors():
            named = {table.view: self._open(table) for table in tables}
            return self._daft.sql(sql, register_globals=False, **named).to_arrow()

    def _open(self, table: RemoteTable) -> Any:
        kind, col = self._daft.DataType, self._daft.col
        kinds = {
            field.name: kind.timestamp("us", "UTC") if field.kind == "timestamp"
            else getattr(kind, _KINDS[field.kind])()
            for field in table.fields
        }  # fmt: skip
        if not table.paths:
            return self._daft.from_pydict({name: [] for name in kinds}).select(
                *(col(name).cast(one) for name, one in kinds.items())
            )
        # Files of older versions lack columns: with a schema these are NULL.
        rows = self._daft.read_parquet(list(table.paths), schema=kinds)
        rows = rows.select(*(col(name).cast(one) for name, one in kinds.items()))
        if table.sessions:
            rows = rows.where(col("session").is_in(list(table.sessions)))
        return rows.distinct(*table.once) if table.once else rows

    def cancel(self) -> None:
        """Leave the cluster, which notices that nobody listens any more."""
        self._ray.shutdown()

    def close(self) -> None:
        """Do nothing: the cluster is left when the process ends."""


def open_engine(address: str) -> RayEngine:
    """Connect."""
    return RayEngine(address)


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Errors of Daft and Ray become ours."""
    from daft.exceptions import DaftCoreException
    from ray.exceptions import RayError

    try:
        yield
    except (DaftCoreException, RayError, ConnectionError, ValueError, RuntimeError) as error:
        text = str(error)
        if "No such file" in text or ("not found" in text.lower() and ".parquet" in text):
            raise FileNotFoundError(text) from None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        reason = " ".join(lines[:2]) or type(error).__name__
        raise QueryError(f"Daft on Ray: {reason}") from None
