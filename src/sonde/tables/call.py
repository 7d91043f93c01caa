"""Exact counts and times of calls."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32


class Call:
    """Exact counts of a function so far, in total or for one caller; only the newest row is valid.

    Rows without a caller are sums over all callers. Counts start when the source is switched on."""

    RING_BYTES = 16 * 2**20
    t_ns: i64 = column("when the row was written", "ns")
    publication: u32 = column("number of the publication: see python.call_publication")
    func: text = column("name of the function; a builtin is spelled as in cProfile")
    file: text = column("source file; ~ for a builtin")
    lineno: u32 = column("first line of the function; 0 for a builtin")
    caller: text | None = column("function that called it; NULL for the sum over all callers")
    caller_file: text | None = column("source file of the caller")
    caller_lineno: u32 | None = column("first line of the caller")
    calls: i64 = column("calls, including unfinished ones; a coroutine counts once")
    primitive_calls: i64 = column("calls that were not nested in another call of the same function")
    own_ns: i64 = column("time in the function itself, without what it called", "ns")
    total_ns: i64 = column(
        "time in the function and what it called; for a coroutine, including awaiting", "ns"
    )


class CallPublication:
    """A complete publication of python.call."""

    RING_BYTES = 256 * 1024
    t_ns: i64 = column("when it was complete", "ns")
    publication: u32 = column("number of the publication in this process")
    first: u32 = column(
        "first publication since the source was switched on; rows of older ones do not count"
    )
    rows: i64 = column("rows of python.call that changed since the previous publication")


ROWS = (Call, CallPublication)
