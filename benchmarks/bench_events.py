"""Regions, counters and markers, beside other ways to mark code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import child
from bench_emit import BATCHES, CALLS, count_only, time_calls
from holder import count_rows
from result import Result, interleave

WALL_BATCHES = 500


def measure(rounds: int) -> list[Result]:
    """Microseconds per call, the empty loop taken off."""
    ways = (
        time_span, time_reused, time_attributes, time_counter, time_marker, time_span_paused,
        time_reused_paused, time_counter_paused, time_span_off, time_reused_off, time_counter_off,
        time_marker_off, time_nothing,
    )  # fmt: skip
    peers = {
        "viztracer log_event": ("viztracer", time_viztracer),
        "nvtx.annotate, no tool listening": ("nvtx", time_nvtx),
        "OpenTelemetry span, no export": ("opentelemetry", time_otel),
        "torch.profiler.record_function, no profiler": ("torch", time_record_function),
        "pyitt.task, no collector": ("pyitt", time_pyitt),
    }
    here = {label: way for label, (package, way) in peers.items() if find_spec(package)}
    with child.open_root() as root:
        calls = {way.__name__: partial(child.call, way, root=root) for way in ways}
        calls |= {label: partial(child.call, way, root=root) for label, way in here.items()}
        found = interleave(rounds, calls)
    others = {label: found[label] for label in here}
    others["a context manager in C that does nothing"] = found["time_nothing"]
    return [
        Result("with sonde.span('x')", "µs", found["time_span"], 0.6, peers=others),
        Result("with a region that is kept", "µs", found["time_reused"], 0.6),
        Result("with sonde.span('x', step=i)", "µs", found["time_attributes"]),
        Result("counter.set_value(i)", "µs", found["time_counter"], 0.4),
        Result("marker.mark()", "µs", found["time_marker"], 0.4),
        Result("with sonde.span('x'), paused", "µs", found["time_span_paused"], 0.1),
        Result("with a region that is kept, paused", "µs", found["time_reused_paused"], 0.1),
        Result("counter.set_value(i), paused", "µs", found["time_counter_paused"], 0.1),
        Result("with sonde.span('x'), not recorded", "µs", found["time_span_off"], 0.1),
        Result("with a region that is kept, not recorded", "µs", found["time_reused_off"], 0.1),
        Result("counter.set_value(i), not recorded", "µs", found["time_counter_off"], 0.1),
        Result("marker.mark(), not recorded", "µs", found["time_marker_off"], 0.1),
    ]


# ---- sonde ------------------------------------------------------------------------------------


def loop_span() -> None:
    from sonde import span

    for _ in range(CALLS):
        with span("batch"):
            pass


def loop_attributes() -> None:
    from sonde import span

    for i in range(CALLS):
        with span("batch", step=i):
            pass


def loop_reused() -> None:
    from sonde import span

    region = span("batch")
    for _ in range(CALLS):
        with region:
            pass


def loop_counter() -> None:
    from sonde import counter

    set_value = counter("batch").set_value
    for i in range(CALLS):
        set_value(i)


def loop_marker() -> None:
    from sonde import mark

    for _ in range(CALLS):
        mark("batch")


def time_on(loop: Callable[[], None], table: str) -> float:
    """The cost while it is recorded; afterwards every row must be there, or be counted as lost."""
    import sonde

    folder = sonde.start(collector="off", source_stack="off", ring_bytes="128MiB")
    cost = time_calls(loop, count_only)
    assert count_rows(folder, table) == BATCHES * CALLS
    return cost


def time_paused(loop: Callable[[], None], table: str) -> float:
    import sonde

    folder = sonde.start(collector="off", source_stack="off")
    with sonde.span("first"):
        sonde.counter("first", 1)
        sonde.mark("first")
    sonde.pause()
    cost = time_calls(loop, count_only)
    assert count_rows(folder, table) == 1
    return cost


def time_span() -> float:
    return time_on(loop_span, "event.span")


def time_span_wall() -> float:
    """By the wall clock, which also counts what others do: the quickest of many short batches is of
    the moments when nobody else had this processor."""
    import sonde

    calls, span, loops, empties = 1000, sonde.span, [], []
    folder = sonde.start(collector="off")
    for _ in range(WALL_BATCHES):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            with span("batch"):
                pass
        middle = time.perf_counter_ns()
        for _ in range(calls):
            pass
        loops.append(middle - begin)
        empties.append(time.perf_counter_ns() - middle)
    assert count_rows(folder, "event.span") == WALL_BATCHES * calls
    return (min(loops) - min(empties)) / calls / 1000


def time_reused() -> float:
    return time_on(loop_reused, "event.span")


def time_attributes() -> float:
    return time_on(loop_attributes, "event.attribute")


def time_counter() -> float:
    return time_on(loop_counter, "event.counter")


def time_marker() -> float:
    return time_on(loop_marker, "event.marker")


def time_span_paused() -> float:
    return time_paused(loop_span, "event.span")


def time_reused_paused() -> float:
    return time_paused(loop_reused, "event.span")


def time_counter_paused() -> float:
    return time_paused(loop_counter, "event.counter")


def time_span_off() -> float:
    return time_calls(loop_span, count_only)


def time_reused_off() -> float:
    return time_calls(loop_reused, count_only)


def time_counter_off() -> float:
    return time_calls(loop_counter, count_only)


def time_marker_off() -> float:
    return time_calls(loop_marker, count_only)


# ---- others -----------------------------------------------------------------------------------


def loop_with(make: Callable[[], object], calls: int = CALLS) -> float:
    def loop() -> None:
        for _ in range(calls):
            with make():
                pass

    def empty() -> None:
        for _ in range(calls):
            pass

    return time_calls(loop, empty, calls)


def time_viztracer() -> float:
    from viztracer import VizTracer

    tracer = VizTracer(tracer_entries=BATCHES * CALLS + 1000, verbose=0, log_sparse=True)
    return loop_with(lambda: tracer.log_event("batch"))


def time_nvtx() -> float:
    import nvtx

    return loop_with(lambda: nvtx.annotate("batch"))


def time_otel() -> float:
    from opentelemetry.sdk.trace import TracerProvider

    start = TracerProvider(shutdown_on_exit=False).get_tracer("bench").start_as_current_span
    return loop_with(lambda: start("batch"), CALLS // 50)


def time_record_function() -> float:
    from torch.profiler import record_function

    return loop_with(lambda: record_function("batch"), CALLS // 10)


def time_pyitt() -> float:
    os.environ.pop("INTEL_LIBITTNOTIFY64", None)
    import pyitt

    return loop_with(lambda: pyitt.task("batch"))


def time_nothing() -> float:
    view = memoryview(b"")
    return loop_with(lambda: view[:])
