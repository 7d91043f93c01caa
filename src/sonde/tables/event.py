"""What the program marks itself: regions, counters and moments."""

from __future__ import annotations

from sonde.session.schema import column, f64, i32, i64, text


class Span:
    """A region of the program that has ended: sonde.span, or a Task, Frame or Event."""

    SCHEMA = "event"
    t_ns: i64 = column("start; the end of the pause if it began while nothing was recorded", "ns")
    dur_ns: i64 = column("from there to its end, or to the pause in which it ended", "ns")
    name: text = column("what the program calls it")
    domain: text | None = column("the Domain it belongs to")
    kind: text = column("span, task, frame or event")
    id: i64 = column("its number in this process; markers are counted with them")
    parent: i64 | None = column("the region around it, of its thread or asyncio task")
    thread: i32 = column("thread that began it, as the kernel counts")
    end_thread: i32 = column("thread that ended it")
    paused_ns: i64 = column("part of dur_ns in which nothing was recorded", "ns")
    cut: text | None = column("begin, end or both: not seen, it lies in a pause; lost: its object "
                              "was deleted before it ended")  # fmt: skip
    number: i64 | None = column("of a frame: 1, 2, … for each name")
    error: text | None = column("the exception that ended it")


class Counter:
    """A value that the program counts, each time it is set."""

    SCHEMA = "event"
    t_ns: i64 = column("when", "ns")
    name: text = column("what the program calls it")
    domain: text | None = column("the Domain it belongs to")
    value: f64 = column("the value from now on")
    whole: i64 | None = column("the same to the last digit, if it is a whole number of 64 bits")
    thread: i32 = column("thread that set it")


class Marker:
    """A moment that the program marks."""

    SCHEMA = "event"
    t_ns: i64 = column("when", "ns")
    name: text = column("what the program calls it")
    domain: text | None = column("the Domain it belongs to")
    scope: text = column("what it is about: global, process, thread, task or marker")
    id: i64 = column("its number in this process; regions are counted with them")
    parent: i64 | None = column("the region in which it lies, of its thread or asyncio task")
    thread: i32 = column("thread that marked it")


class Attribute:
    """What else the program says about a region or marker: `sonde.span("load", shard=3)`."""

    SCHEMA = "event"
    t_ns: i64 = column("when it was said", "ns")
    id: i64 = column("of the region or marker")
    key: text = column("name of the attribute")
    number: f64 | None = column("its value, if it is a number or truth value")
    whole: i64 | None = column("the same to the last digit, if it is a whole number of 64 bits")
    text: text | None = column("its value, if it is anything else")


ROWS = (Span, Counter, Marker, Attribute)
