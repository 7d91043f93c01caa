"""Spans, counters and markers that the program sets itself."""

from __future__ import annotations

from sonde.session.schema import column, f64, i32, i64, text, u32


class Span:
    """A span that has ended: a sonde.span, or a Task, Frame or Event of sonde.profiler."""

    SCHEMA = "event"
    t_ns: i64 = column(
        "start, or the end of a pause if the span began while recording was paused", "ns"
    )
    dur_ns: i64 = column(
        "duration from t_ns to the end, or to the start of the pause in which it ended", "ns"
    )
    name: text = column("name that the program gave it")
    domain: text | None = column("sonde.profiler Domain that it belongs to")
    kind: text = column("span, task, frame or event")
    id: i64 = column("number within this process; spans and markers share one sequence")
    parent: i64 | None = column("id of the enclosing span in the same thread or asyncio task")
    thread: i32 = column("kernel id of the thread that began it")
    end_thread: i32 = column("kernel id of the thread that ended it")
    paused_ns: i64 = column("part of dur_ns during which recording was paused", "ns")
    cut: text | None = column("begin, end or both: this part lies in a pause and was not recorded; "
                              "lost: the object was deleted before the span ended")  # fmt: skip
    number: i64 | None = column("for a Frame: 1, 2, …, counted separately for each name")
    error: text | None = column("type of the exception that ended it")
    interpreter: u32 = column("number of the interpreter that the thread was in; 0 is the main one")


class Counter:
    """A value to which the program set a counter."""

    SCHEMA = "event"
    t_ns: i64 = column("when", "ns")
    name: text = column("name that the program gave it")
    domain: text | None = column("sonde.profiler Domain that it belongs to")
    value: f64 = column("value from this moment on")
    whole: i64 | None = column("exact value, if it is a whole number that fits 64 bits")
    thread: i32 = column("kernel id of the thread that set it")
    interpreter: u32 = column("number of the interpreter that the thread was in; 0 is the main one")


class Marker:
    """A moment that the program marked."""

    SCHEMA = "event"
    t_ns: i64 = column("when", "ns")
    name: text = column("name that the program gave it")
    domain: text | None = column("sonde.profiler Domain that it belongs to")
    scope: text = column("what the marker concerns: global, process, thread, task or marker")
    id: i64 = column("number within this process; spans and markers share one sequence")
    parent: i64 | None = column("id of the span around it in the same thread or asyncio task")
    thread: i32 = column("kernel id of the thread that set it")
    interpreter: u32 = column("number of the interpreter that the thread was in; 0 is the main one")


class Attribute:
    """An attribute that the program gave a span or marker: `sonde.span("load", shard=3)`."""

    SCHEMA = "event"
    t_ns: i64 = column("when it was given", "ns")
    id: i64 = column("id of the span or marker")
    key: text = column("name of the attribute")
    number: f64 | None = column("value, if it is a number or a boolean")
    whole: i64 | None = column("exact value, if it is a whole number that fits 64 bits")
    text: text | None = column("value, if it is anything else")


ROWS = (Span, Counter, Marker, Attribute)
