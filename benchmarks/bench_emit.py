"""One row from Python, beside other ways to write an event down."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import child
from holder import count_rows
from result import Result, interleave

CALLS, BATCHES = 100_000, 5
NEW_TEXTS = 15_000  # a batch: all of them fit the text table as it comes
RING_BYTES = 16 * 2**20


def measure(rounds: int) -> list[Result]:
    """Microseconds per call, the empty loop taken off."""
    ways = (
        time_mixed, time_ints, time_equal_text, time_new_text, time_paused, time_not_started,
        time_pack, time_pack_clock, time_instant, time_instant_bare, time_event, time_span,
    )  # fmt: skip
    with child.open_root() as root:
        calls = {way.__name__: partial(child.call, way, root=root) for way in ways}
        found = interleave(rounds, calls)
    others = {
        "struct.pack_into an mmap, no text, no clock": found["time_pack"],
        "the same with clock and moving offset": found["time_pack_clock"],
        "viztracer add_instant, no values": found["time_instant_bare"],
        "viztracer add_instant, 4 values": found["time_instant"],
        "viztracer log_event, no values": found["time_event"],
        "OpenTelemetry span, 4 values, no export": found["time_span"],
    }
    return [
        Result("emit(): i64, f64, text, i64", "µs", found["time_mixed"], 0.35, peers=others),
        Result("emit(): 4 x i64", "µs", found["time_ints"], 0.35),
        Result("emit(): a new str of a known text each call", "µs", found["time_equal_text"], 0.35),
        Result("emit(): a text never seen before each call", "µs", found["time_new_text"], 0.35),
        Result("emit(): paused", "µs", found["time_paused"], 0.1),
        Result("emit(): not started", "µs", found["time_not_started"], 0.1),
    ]


def time_calls(loop: Callable[[], None], empty: Callable[[], None], calls: int = CALLS) -> float:
    """Microseconds per call: the median of a few batches, each with its own empty loop. By the
    thread's CPU time: none of these calls waits, and a busy machine counts for less."""
    found = []
    for _ in range(BATCHES):
        begin = time.thread_time_ns()
        loop()
        middle = time.thread_time_ns()
        empty()
        end = time.thread_time_ns()
        found.append((middle - begin - (end - middle)) / calls / 1000)
    return median(found)


def count_only() -> None:
    for _ in range(CALLS):
        pass


# ---- sonde ------------------------------------------------------------------------------------


def open_mixed() -> Callable[..., None]:
    import sonde

    class Mixed:
        step: sonde.i64
        loss: sonde.f64
        phase: sonde.text
        tokens: sonde.i64

    return sonde.table(Mixed)


def time_recorded(
    loop: Callable[[], None],
    table: str,
    empty: Callable[[], None] = count_only,
    calls: int = CALLS,
) -> float:
    """The same while recorded; afterwards every row must be there."""
    import sonde

    folder = sonde.start(collector="off")
    cost = time_calls(loop, empty, calls)
    assert count_rows(folder, table) == BATCHES * calls
    return cost


def time_mixed() -> float:
    return time_recorded(partial(loop_mixed, open_mixed()), "job.mixed")


def loop_mixed(emit: Callable[..., None]) -> None:
    phase = "train"
    for i in range(CALLS):
        emit(i, 1.5, phase, i)


def time_paused() -> float:
    import sonde

    emit = open_mixed()
    folder = sonde.start(collector="off")
    emit(0, 0.0, "", 0)
    sonde.pause()
    cost = time_calls(partial(loop_mixed, emit), count_only)
    assert count_rows(folder, "job.mixed") == 1
    return cost


def time_not_started() -> float:
    return time_calls(partial(loop_mixed, open_mixed()), count_only)


def time_ints() -> float:
    import sonde

    class Ints:
        a: sonde.i64
        b: sonde.i64
        c: sonde.i64
        d: sonde.i64

    emit = sonde.table(Ints)

    def loop() -> None:
        for i in range(CALLS):
            emit(i, 7, i, i)

    return time_recorded(loop, "job.ints")


def time_texts(batches: list[list[str]]) -> float:
    """A call for each text; the texts are made before the clock runs."""
    emit = open_mixed()
    ahead, again = iter(batches), iter(batches)

    def loop() -> None:
        for text in next(ahead):
            emit(7, 1.5, text, 7)

    def empty() -> None:
        for _text in next(again):
            pass

    return time_recorded(loop, "job.mixed", empty, len(batches[0]))


def time_equal_text() -> float:
    return time_texts([[f"layer-{i % 16}" for i in range(CALLS)] for _ in range(BATCHES)])


def time_new_text() -> float:
    return time_texts([[f"id-{k}-{i:06d}" for i in range(NEW_TEXTS)] for k in range(BATCHES)])


# ---- others -----------------------------------------------------------------------------------


def time_pack() -> float:
    pack = struct.Struct("<qdqq").pack_into
    with mmap.mmap(-1, RING_BYTES) as memory:

        def loop() -> None:
            for i in range(CALLS):
                pack(memory, 0, i, 1.5, 7, i)

        return time_calls(loop, count_only)


def time_pack_clock() -> float:
    row = struct.Struct("<qqdqq")
    pack, clock, size = row.pack_into, time.monotonic_ns, row.size
    with mmap.mmap(-1, RING_BYTES) as memory:
        room = len(memory) // size * size

        def loop() -> None:
            at = 0
            for i in range(CALLS):
                pack(memory, at, clock(), i, 1.5, 7, i)
                at = (at + size) % room

        return time_calls(loop, count_only)


def time_instant() -> float:
    return time_viztracer(loop_instant)


def time_instant_bare() -> float:
    return time_viztracer(loop_instant_bare)


def time_viztracer(loop: Callable[[object], None]) -> float:
    from viztracer import VizTracer

    # Outside of start() … stop() an instant is not kept.
    tracer = VizTracer(tracer_entries=BATCHES * CALLS + 1000, verbose=0)
    tracer.start()
    cost = time_calls(partial(loop, tracer), count_only)
    tracer.stop()
    assert tracer.parse() >= BATCHES * CALLS
    return cost


def loop_instant(tracer: object) -> None:
    add = tracer.add_instant
    for i in range(CALLS):
        add("batch", {"step": i, "loss": 1.5, "phase": "train", "tokens": i})


def loop_instant_bare(tracer: object) -> None:
    add = tracer.add_instant
    for _ in range(CALLS):
        add("batch")


def time_event() -> float:
    from viztracer import VizTracer

    # Sparse is its cheapest way: functions are not traced beside the events.
    tracer = VizTracer(tracer_entries=BATCHES * CALLS + 1000, verbose=0, log_sparse=True)

    def loop() -> None:
        for _ in range(CALLS):
            with tracer.log_event("batch"):
                pass

    cost = time_calls(loop, count_only)
    assert tracer.parse() >= BATCHES * CALLS
    return cost


def time_span() -> float:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanProcessor())
    start = provider.get_tracer("bench").start_span
    calls = CALLS // 50  # slow enough to be timed in fewer

    def loop() -> None:
        for i in range(calls):
            start("batch", attributes={"step": i, "loss": 1.5, "phase": "train", "tokens": i}).end()

    def empty() -> None:
        for _ in range(calls):
            pass

    return time_calls(loop, empty, calls)
