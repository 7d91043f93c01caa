"""The SQL engine: locked down, limited in time and memory, and interruptible."""

from __future__ import annotations

import os
import queue
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from sonde import _core, settings
from sonde.errors import QueryError

# What gets the rows of a query: (connection, SQL, most bytes, whether nobody waits any more).
Fetch = Callable[[duckdb.DuckDBPyConnection, str, int, threading.Event], Any]
Rows = tuple[list[str], list[tuple[Any, ...]]]  # names of columns, rows

PIECE_ROWS = 100_000  # of a result that comes in pieces
_LEAST_ROWS = 2048  # as many as the engine makes at once; a row may hold megabytes of text
_STACK_BYTES = 16 << 20  # of address space for each thread of the engine
# What a query is done with goes back to the system, so that a user's program stays small.
GIVES_BACK = {
    "allocator_flush_threshold": "1MB",
    "allocator_bulk_deallocation_flush_threshold": "1MB",
}
_INTERRUPT_S = 2.0  # for the engine to notice that it was interrupted


def connect(
    memory: str, folders: Sequence[str] = (), *, tuning: Mapping[str, str] = GIVES_BACK
) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that can reach no network, and no file but those in `folders`.

    `tuning` are more of the engine's settings."""
    # Without a folder to spill to, a query that needs too much memory ends with a clear error.
    connection = duckdb.connect(
        ":memory:",
        config={
            "python_enable_replacements": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "memory_limit": memory,
            "temp_directory": "",
            # With it DuckDB 2.0 finds no row for some queries that have several.
            "disabled_optimizers": "statistics_propagation",
            **tuning,
        },
    )
    quoted = ", ".join("'" + folder.replace("'", "''") + "'" for folder in folders)
    connection.execute(f"SET allowed_directories = [{quoted}]")  # a database must be there first
    connection.execute("SET enable_external_access = false")
    # A time reads the same everywhere.
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@contextmanager
def limited(memory: str) -> Iterator[None]:
    """Have the kernel refuse this process more than `memory` beyond what it has, for the block.

    The engine's own limit covers neither texts that a function makes nor the result. This is for
    the tool alone: in a program that calls `sonde.open()`, it would hit everything else as well."""
    size, before = settings.parse_size(memory), resource.getrlimit(resource.RLIMIT_DATA)
    pool = pa.default_memory_pool()
    # Some of Arrow's functions use its own pool whatever is set here, and on some machines that one
    # reserves a gigabyte at its first use: have that behind us.
    pa.allocate_buffer(1, memory_pool=pool)
    pa.set_memory_pool(pa.system_memory_pool())
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    room = used + size + _STACK_BYTES * (4 + (os.cpu_count() or 1))
    if before[1] != resource.RLIM_INFINITY:
        room = min(room, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (room, before[1]))
    # A thread of the engine that gets no memory may crash instead of saying so.
    error = too_large(memory)
    _core.crash_line(f"sonde: {error}\n", error.exit_code)
    try:
        yield
    except MemoryError:
        raise error from None
    finally:
        _core.crash_line(None, 0)
        resource.setrlimit(resource.RLIMIT_DATA, before)
        pa.set_memory_pool(pool)


def is_too_large(error: BaseException) -> bool:
    """Tell whether memory was the reason of an error; Arrow and DuckDB have several of them."""
    words = ("Out of Memory", "bad_alloc", "bad allocation", "malloc of size", "realloc of size")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def too_large(memory: str) -> QueryError:
    """Return the error of a query that needs more memory than it may use."""
    return QueryError(
        f"the query or its result needs more than {memory}; ask for less (LIMIT, fewer columns, "
        "sums instead of rows), or give it more with --memory"
    )


# Connections of queries that did not stop: they cannot be closed, and the program must end without
# waiting for them.
abandoned: list[duckdb.DuckDBPyConnection] = []


def run(
    connection: duckdb.DuckDBPyConnection, sql: str, timeout_s: float, memory: str,
    fetch: Fetch | None = None,
) -> Any:  # fmt: skip
    """Run a query in its own thread, so that Ctrl-C and the time limit reach the engine. Return its
    rows as `fetch` returns them; as a table of Arrow, if it is not given."""
    get, stopped = fetch or _fetch, threading.Event()

    def stop(done: threading.Event) -> None:
        stopped.set()
        if not _interrupt(connection, done):
            abandoned.append(connection)

    def ask() -> Any:
        return get(connection, sql, settings.parse_size(memory), stopped)

    return wait_for_answer(ask, timeout_s, stop)


def wait_for_answer(
    ask: Callable[[], Any], timeout_s: float, stop: Callable[[threading.Event], None]
) -> Any:
    """Return what `ask` returns, in a thread of its own, so that Ctrl-C and the time limit reach
    whoever waits. `stop` is called in any case, with an event that is set once `ask` has ended."""
    answer: list[Any] = []
    failure: list[BaseException] = []
    # An event, not join(): a join that Ctrl-C interrupts takes the thread for dead (CPython 3.11).
    done = threading.Event()

    def work() -> None:
        try:
            answer.append(ask())
        except BaseException as error:  # handed to the caller, which raises it
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="sonde-query", daemon=True).start()
    try:
        in_time = done.wait(timeout_s)
    finally:
        stop(done)
    if not in_time:
        raise QueryError(f"stopped after {timeout_s:g} s; narrow the query or raise --timeout")
    if failure:
        raise failure[0]
    return answer[0]


def _interrupt(connection: duckdb.DuckDBPyConnection, done: threading.Event) -> bool:
    """Make a query end that has not; return whether it did."""
    deadline = time.monotonic() + _INTERRUPT_S
    while not done.is_set() and time.monotonic() < deadline:
        connection.interrupt()  # again and again: an engine that has yet to begin forgets it
        done.wait(0.05)
    return done.is_set()


def _fetch(
    connection: duckdb.DuckDBPyConnection, sql: str, limit_bytes: int, stopped: threading.Event
) -> pa.Table:
    """Return the result, fetched in pieces so that the memory limit applies to it as well."""
    reader = connection.sql(sql).to_arrow_reader(_LEAST_ROWS)
    pieces, size = [], 0
    for piece in reader:
        if stopped.is_set():
            break
        pieces.append(piece)
        size += piece.nbytes
        if size > limit_bytes:
            raise MemoryError
    return pa.Table.from_batches(pieces, reader.schema)


def fetch_rows(
    connection: duckdb.DuckDBPyConnection, sql: str, limit_bytes: int, stopped: threading.Event
) -> Rows:
    """Return the names of the columns and the rows as tuples, for many small results: to make a
    relation and tables of Arrow takes as long as to answer."""
    done = connection.execute(sql)
    columns = done.description or ()
    # To make Python's values of moments, DuckDB needs one more package. Its first version has
    # another word for their type; its second wants each result read or given up.
    if any(word in str(column[1]) for column in columns for word in ("TIME ZONE", "DATETIME")):
        if hasattr(done, "abort"):
            done.abort()
        table = _fetch(connection, sql, limit_bytes, stopped)
        values = [column.to_pylist() for column in table.columns]
        return table.column_names, list(zip(*values, strict=True))
    return [column[0] for column in columns], done.fetchall()


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
