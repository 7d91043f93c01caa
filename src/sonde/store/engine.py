"""The SQL engine: locked down, limited in time and memory, and interruptible."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from sonde import settings
from sonde.errors import QueryError

PIECE_ROWS = 100_000  # of a result that comes in pieces
_INTERRUPT_S = 2.0  # for the engine to notice that it was interrupted


def connect(memory: str) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that can reach no file and no network."""
    # Without a folder to spill to, a query that needs too much memory ends with a clear error.
    connection = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "python_enable_replacements": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "memory_limit": memory,
            "temp_directory": "",
        },
    )
    # A time reads the same everywhere.
    connection.execute("SET TimeZone = 'UTC'")
    return connection


# Connections of queries that did not stop: they cannot be closed, and the program must end without
# waiting for them.
abandoned: list[duckdb.DuckDBPyConnection] = []


def run(connection: duckdb.DuckDBPyConnection, sql: str, timeout_s: float, memory: str) -> pa.Table:
    """Run a query in its own thread, so that Ctrl-C and the time limit reach the engine."""
    answer: list[pa.Table] = []
    failure: list[BaseException] = []
    # An event, not join(): a join that Ctrl-C interrupts takes the thread for dead (CPython 3.11).
    done = threading.Event()

    def work() -> None:
        try:
            answer.append(_fetch(connection, sql, settings.parse_size(memory)))
        except BaseException as error:  # handed to the caller, which raises it
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="sonde-query", daemon=True).start()
    try:
        in_time = done.wait(timeout_s)
    finally:
        if not done.is_set():
            connection.interrupt()
            if not done.wait(_INTERRUPT_S):
                abandoned.append(connection)
    if not in_time:
        raise QueryError(f"stopped after {timeout_s:g} s; narrow the query or raise --timeout")
    if failure:
        raise failure[0]
    return answer[0]


def _fetch(connection: duckdb.DuckDBPyConnection, sql: str, limit_bytes: int) -> pa.Table:
    """Return the result, fetched in pieces so that the memory limit applies to it as well."""
    reader = connection.sql(sql).to_arrow_reader(PIECE_ROWS)
    pieces, size = [], 0
    for piece in reader:
        pieces.append(piece)
        size += piece.nbytes
        if size > limit_bytes:
            raise QueryError(
                f"the result is larger than {limit_bytes} bytes; add LIMIT or --memory"
            )
    return pa.Table.from_batches(pieces, reader.schema)


def iter_pieces(
    connection: duckdb.DuckDBPyConnection, sql: str, timeout_s: float
) -> Iterator[pa.RecordBatch]:
    """Run a query and yield its rows as they come; at most two pieces wait."""
    pieces: queue.Queue[pa.RecordBatch | None] = queue.Queue(maxsize=2)
    failure: list[BaseException] = []
    enough, done = threading.Event(), threading.Event()

    def work() -> None:
        try:
            for piece in connection.sql(sql).to_arrow_reader(PIECE_ROWS):
                pieces.put(piece)
                if enough.is_set():
                    break
        except BaseException as error:  # handed to the caller, which raises it
            failure.append(error)
        finally:
            done.set()
            pieces.put(None)

    threading.Thread(target=work, name="sonde-query", daemon=True).start()
    try:
        while (piece := pieces.get(timeout=timeout_s)) is not None:
            yield piece
    except queue.Empty:
        raise QueryError(f"stopped after {timeout_s:g} s without a row; narrow the query") from None
    finally:
        enough.set()
        _end_pieces(connection, pieces, done)
    if failure:
        raise failure[0]


def _end_pieces(
    connection: duckdb.DuckDBPyConnection, pieces: queue.Queue[Any], done: threading.Event
) -> None:
    """Make the thread of a stream end, even if its caller wants no more."""
    if not done.is_set():
        connection.interrupt()
        deadline = time.monotonic() + _INTERRUPT_S
        while not done.is_set() and time.monotonic() < deadline:
            try:
                pieces.get(timeout=0.05)  # makes room, which the thread may be waiting for
            except queue.Empty:
                continue
        if not done.is_set():
            abandoned.append(connection)
