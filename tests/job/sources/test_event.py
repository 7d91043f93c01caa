"""Regions, counters and markers: what is recorded of them, and what is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.errors import Damaged
from sonde.job.source_switch import switch_source
from sonde.session import list_sessions
from sonde.session.files import EVENT_TOTALS

HOSTILE = ['a "quote"', "back\\slash", "new\nline", "nul\0here", "emoji 🚀", "x" * 10_000, "", "{"]


@pytest.fixture
def record() -> Iterator[Callable[..., str]]:
    """Start a recording of this process without anything beside events."""

    def record(**more: object) -> str:
        folder = sonde.start(collector="off", source_stack="off", source_gc="off", **more)
        assert folder is not None
        return folder

    yield record
    sonde.stop()
    _core.events_gate(True)
    _core.events_mirror(None)


def read(folder: str, table: str, order: str = "t_ns") -> list[dict[str, object]]:
    return sonde.open(folder).query(f"SELECT * FROM event.{table} ORDER BY {order}").to_pylist()


def spans(folder: str) -> dict[str, dict[str, object]]:
    return {str(row["name"]): row for row in read(folder, "span")}


def summary(folder: str) -> dict[str, dict[str, object]]:
    return {str(row["name"]): row for row in read(folder, "summary", "name")}


def work(ns: int = 200_000) -> None:
    end = time.monotonic_ns() + ns
    while time.monotonic_ns() < end:
        pass


# ---- regions -------------------------------------------------------------------------------------


def test_a_span_is_a_row_between_two_looks_at_the_clock(record: Callable[..., str]) -> None:
    folder = record()
    before = time.monotonic_ns()
    with sonde.span("outer"):
        began = time.monotonic_ns()
        with sonde.span("inner"):
            work()
        ended = time.monotonic_ns()
    after = time.monotonic_ns()
    found = spans(folder)
    outer, inner = found["outer"], found["inner"]
    assert before <= outer["t_ns"] <= began and ended <= outer["t_ns"] + outer["dur_ns"] <= after
    assert began <= inner["t_ns"] and inner["t_ns"] + inner["dur_ns"] <= ended
    assert inner["parent"] == outer["id"] and outer["parent"] is None
    assert inner["thread"] == inner["end_thread"] == threading.get_native_id()
    assert [outer[key] for key in ("kind", "domain", "cut", "number", "error", "paused_ns")] == [
        "span", None, None, None, None, 0,
    ]  # fmt: skip


def test_a_region_may_be_begun_again_before_it_ends(record: Callable[..., str]) -> None:
    folder = record()
    region = sonde.span("again")

    def recurse(depth: int) -> None:
        with region:
            work(50_000)
            if depth:
                recurse(depth - 1)

    recurse(4)
    rows = read(folder, "span")
    assert len(rows) == 5 and len({row["t_ns"] for row in rows}) == 5
    assert [row["parent"] for row in rows] == [None, *(row["id"] for row in rows[:-1])]
    ends = [row["t_ns"] + row["dur_ns"] for row in rows]
    assert ends == sorted(ends, reverse=True)


def test_a_region_that_ends_in_another_thread_says_so(record: Callable[..., str]) -> None:
    folder = record()
    region = sonde.span("handed over")
    region.start()
    thread = threading.Thread(target=region.stop)
    thread.start()
    thread.join()
    with sonde.span("after"):
        pass
    found = spans(folder)
    assert found["handed over"]["thread"] == threading.get_native_id()
    assert found["handed over"]["end_thread"] == thread.native_id
    assert found["after"]["parent"] is None


def test_threads_share_a_region_and_each_ends_its_own(record: Callable[..., str]) -> None:
    folder = record()
    region = sonde.span("shared")
    turn = threading.Barrier(4)

    def body() -> None:
        turn.wait()
        for _ in range(50):
            with region:
                work(1000)

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read(folder, "span")
    assert len(rows) == 200 and all(row["thread"] == row["end_thread"] for row in rows)
    assert all(row["parent"] is None for row in rows)


def test_regions_that_end_out_of_order_do_not_stay_around_others(
    record: Callable[..., str],
) -> None:
    folder = record()
    with sonde.span("outer"):
        first, second = sonde.span("first"), sonde.span("second")
        first.start()
        second.start()
        first.stop()
        for _ in range(20):
            with sonde.span("between"):
                pass
        second.stop()
        with sonde.span("later"):
            pass
    found = spans(folder)
    assert found["second"]["parent"] == found["first"]["id"]
    assert found["between"]["parent"] == found["second"]["id"]
    assert found["later"]["parent"] == found["outer"]["id"]


def test_spans_follow_their_asyncio_task(record: Callable[..., str]) -> None:
    folder = record()
    shared = sonde.span("shared")

    async def child(name: str) -> None:
        with sonde.span(name), shared:
            await asyncio.sleep(0.002)
            with sonde.span(name + " inner"):
                await asyncio.sleep(0.002)

    async def main() -> None:
        with sonde.span("main"):
            await asyncio.gather(*(child(f"task {i}") for i in range(5)))

    with sonde.span("program"):
        asyncio.run(main())
    rows = read(folder, "span")
    by_id = {row["id"]: row for row in rows}
    found = spans(folder)
    assert found["main"]["parent"] == found["program"]["id"]
    for i in range(5):
        assert found[f"task {i}"]["parent"] == found["main"]["id"]
        around = by_id[found[f"task {i} inner"]["parent"]]
        assert around["name"] == "shared" and around["parent"] == found[f"task {i}"]["id"]


def test_a_task_keeps_the_region_it_was_made_in(record: Callable[..., str]) -> None:
    folder = record()

    async def child() -> None:
        with sonde.span("child"):
            await asyncio.sleep(0)

    async def main() -> None:
        with sonde.span("submit"):
            task = asyncio.create_task(child())
        with sonde.span("other"):
            await task
            await asyncio.to_thread(sonde.mark, "in a thread")

    asyncio.run(main())
    found = spans(folder)
    assert found["child"]["parent"] == found["submit"]["id"]
    [marker] = read(folder, "marker")
    assert marker["parent"] == found["other"]["id"]


def test_a_task_that_began_before_the_recording_ends_no_region_of_another(
    record: Callable[..., str],
) -> None:
    region = sonde.span("handler")

    async def handle(ends: asyncio.Event) -> None:
        with region:
            await ends.wait()

    async def serve() -> str:
        early, late = asyncio.Event(), asyncio.Event()
        old = asyncio.create_task(handle(early))
        await asyncio.sleep(0)
        folder = record()
        new = asyncio.create_task(handle(late))
        await asyncio.sleep(0)
        early.set()
        await old
        assert [row["name"] for row in read(folder, "open_span")] == ["handler"]
        assert read(folder, "span") == []
        late.set()
        await new
        return folder

    folder = asyncio.run(serve())
    assert len(read(folder, "span")) == 1 and read(folder, "open_span") == []


def test_a_thread_that_began_before_the_recording_ends_no_region_of_another(
    record: Callable[..., str],
) -> None:
    region = sonde.span("shared")
    began, may_end = threading.Event(), threading.Event()

    def early() -> None:
        with region:
            began.set()
            assert may_end.wait(30)

    thread = threading.Thread(target=early)
    thread.start()
    assert began.wait(30)
    folder = record()
    with region:
        may_end.set()
        thread.join(30)
        assert len(read(folder, "open_span")) == 1
    [row] = read(folder, "span")
    assert row["end_thread"] == row["thread"] == threading.get_native_id()


def test_a_region_that_another_task_has_ended_is_around_nothing(record: Callable[..., str]) -> None:
    folder = record()

    async def end(region: _core.Region) -> None:
        region.stop()

    async def submit() -> None:
        for _ in range(3):
            request = sonde.span("request")
            request.start()
            await asyncio.create_task(end(request))
            with sonde.span("after"):
                sonde.mark("later")

    asyncio.run(submit())
    found = read(folder, "span")
    assert [row["name"] for row in found] == ["request", "after"] * 3
    assert {row["parent"] for row in found} == {None}


def test_all_regions_of_a_task_lie_in_the_one_it_was_made_in(record: Callable[..., str]) -> None:
    folder = record()

    async def child(may_go: asyncio.Event) -> None:
        await may_go.wait()
        for name in ("first", "second"):
            with sonde.span(name):
                pass

    async def main() -> None:
        may_go = asyncio.Event()
        with sonde.span("around"):
            task = asyncio.create_task(child(may_go))
            await asyncio.sleep(0)
        may_go.set()
        await task

    asyncio.run(main())
    found = spans(folder)
    assert found["first"]["parent"] == found["second"]["parent"] == found["around"]["id"]


def test_a_region_of_an_earlier_recording_is_no_parent(record: Callable[..., str]) -> None:
    record()

    async def main() -> str:
        with sonde.span("earlier") as earlier:
            sonde.stop()
            folder = record()
            assert earlier.id is None
            with sonde.span("later"), sonde.span("under").under(earlier):
                sonde.mark("here")
        return folder

    found = spans(asyncio.run(main()))
    assert set(found) == {"later", "under"} and found["later"]["parent"] is None
    assert found["under"]["parent"] == found["later"]["id"]


def test_two_threads_that_end_the_same_region_at_once_end_it_once(
    record: Callable[..., str],
) -> None:
    for _ in range(20):
        folder = record()
        region = sonde.span("one")
        region.start()
        together = threading.Barrier(4)

        def end(region: _core.Region = region, together: threading.Barrier = together) -> None:
            together.wait(30)
            region.stop()

        threads = [threading.Thread(target=end) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert summary(folder)["one"]["count"] == 1
        sonde.stop()


def test_an_attribute_never_asks_the_program(record: Callable[..., str]) -> None:
    class Hostile(int):
        def __int__(self) -> int:
            raise RuntimeError

        __index__ = __float__ = __int__  # type: ignore[assignment]

    folder = record()
    with sonde.span("ok", size=Hostile(3)):
        pass
    assert [row["whole"] for row in read(folder, "attribute")] == [3]


def test_of_a_generator_an_error_is_named_and_its_end_is_none(record: Callable[..., str]) -> None:
    folder = record()

    @sonde.span("plain")
    def plain() -> Iterator[int]:
        yield 1
        raise KeyError

    @sonde.span("async")
    async def wait(fails: bool) -> AsyncIterator[int]:
        yield 1
        if fails:
            raise KeyError

    async def use() -> None:
        assert [one async for one in wait(False)] == [1]
        with contextlib.suppress(KeyError):
            assert [one async for one in wait(True)] == []

    with contextlib.suppress(KeyError):
        list(plain())
    asyncio.run(use())
    errors = [(row["name"], row["error"]) for row in read(folder, "span")]
    assert errors == [("plain", None), ("plain", "KeyError"), ("async", None), ("async", None),
                      ("async", None), ("async", "KeyError")]  # fmt: skip


def test_under_makes_it_a_child_of_what_submitted_it(record: Callable[..., str]) -> None:
    folder = record()
    with sonde.span("submit") as submit:
        thread = threading.Thread(target=lambda: sonde.span("work").under(submit)(lambda: None)())
        thread.start()
        thread.join()
    found = spans(folder)
    assert found["work"]["parent"] == found["submit"]["id"]


def test_an_exception_is_named_and_passes(record: Callable[..., str]) -> None:
    folder = record()
    with pytest.raises(ZeroDivisionError), sonde.span("fails"):
        _ = 1 // 0
    assert spans(folder)["fails"]["error"] == "ZeroDivisionError"


def test_stop_without_start_does_nothing(record: Callable[..., str]) -> None:
    folder = record()
    sonde.span("never begun").stop()
    assert read(folder, "span") == []


def test_contextlib_takes_a_region_for_a_context_manager(record: Callable[..., str]) -> None:
    folder = record()
    with contextlib.ExitStack() as stack:
        stack.enter_context(sonde.span("in a stack"))
        assert sonde.span.__enter__ is not sonde.span.__exit__
    region = sonde.span("by hand")
    assert region.__enter__() is region
    region.__exit__(None, None, None)
    assert set(spans(folder)) == {"in a stack", "by hand"}


def test_a_region_whose_object_is_deleted_is_lost_not_open(record: Callable[..., str]) -> None:
    folder = record()
    sonde.span("dropped").start()
    assert spans(folder)["dropped"]["cut"] == "lost" and read(folder, "open_span") == []


def test_more_regions_than_slots_are_all_recorded_when_they_end(record: Callable[..., str]) -> None:
    folder = record()
    regions = [sonde.span(f"r{i % 10}") for i in range(10_000)]
    for region in regions:
        region.start()
    assert len(read(folder, "open_span")) == 8191
    for region in regions:
        region.stop()
    assert len(read(folder, "span")) == 10_000 and read(folder, "open_span") == []
    assert sum(row["count"] for row in summary(folder).values()) == 10_000


# ---- decorators ----------------------------------------------------------------------------------


def test_functions_of_every_kind_can_be_decorated(record: Callable[..., str]) -> None:
    folder = record()

    class Model:
        @sonde.span("method")
        def method(self, x: int) -> int:
            """Doubles."""
            return 2 * x

        @sonde.span("static")
        @staticmethod
        def static(x: int) -> int:
            return x

        @classmethod
        @sonde.span("class")
        def klass(cls, x: int) -> int:
            return x

    @sonde.span("coroutine")
    async def coroutine(x: int) -> int:
        await asyncio.sleep(0)
        return x

    assert Model().method(2) == 4 and Model.method.__doc__ == "Doubles."
    assert Model.static(1) == Model.klass(1) == asyncio.run(coroutine(1)) == 1
    assert set(spans(folder)) == {"method", "static", "class", "coroutine"}


def test_of_a_generator_each_stretch_of_its_own_work_is_a_region(
    record: Callable[..., str],
) -> None:
    folder = record()
    closed = []

    @sonde.span("batches")
    def batches(n: int) -> Iterator[object]:
        try:
            got: object = None
            for i in range(n):
                work(100_000)
                try:
                    got = yield i if got is None else got
                except KeyError:
                    got = "caught"
            return "done"
        finally:
            closed.append(True)

    generator = batches(3)
    assert next(generator) == 0 and generator.send("sent") == "sent"
    assert generator.throw(KeyError) == "caught"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "done" and closed == [True]
    with sonde.span("loop body"):
        for _ in batches(2):
            work(3_000_000)
    rows = [row for row in read(folder, "span") if row["name"] == "batches"]
    assert len(rows) == 4 + 3
    assert sum(row["dur_ns"] for row in rows) < 2 * spans(folder)["loop body"]["dur_ns"]
    half_used = batches(2)
    next(half_used)
    half_used.close()
    assert len(closed) == 3


def test_an_async_generator_too(record: Callable[..., str]) -> None:
    folder = record()

    @sonde.span("stream")
    async def stream() -> AsyncIterator[object]:
        try:
            got = yield 1
        except KeyError:
            got = "caught"
        yield got

    async def main() -> None:
        generator = stream()
        assert await generator.asend(None) == 1
        assert await generator.athrow(KeyError()) == "caught"
        await generator.aclose()
        assert [item async for item in stream()] == [1, None]

    asyncio.run(main())
    assert len(read(folder, "span")) == 2 + 3


# ---- attributes ----------------------------------------------------------------------------------


class Tensor:
    """Like one on a device: to ask for its value would wait."""

    def __float__(self) -> float:
        raise AssertionError("its value was asked for")

    __str__ = __repr__ = __index__ = __float__  # type: ignore[assignment]


def test_attributes_keep_their_values_and_cost_no_look_at_a_tensor(
    record: Callable[..., str],
) -> None:
    folder = record()
    with sonde.span("a", shard=3, big=2**62 + 1, part=0.5, ok=True, path="x", t=Tensor()) as span:
        span.set(rows=7)
    sonde.mark("b", reason="why")
    query = "SELECT name, key, number, whole, text FROM event.attribute JOIN (SELECT id, name FROM "
    query += "event.span UNION ALL SELECT id, name FROM event.marker) USING (id)"
    rows = [tuple(row.values()) for row in sonde.open(folder).query(query).to_pylist()]
    assert set(rows) == {
        ("a", "shard", 3.0, 3, None), ("a", "big", float(2**62), 2**62 + 1, None),
        ("a", "part", 0.5, None, None), ("a", "ok", 1.0, 1, None), ("a", "path", None, None, "x"),
        ("a", "t", None, None, "<Tensor>"), ("a", "rows", 7.0, 7, None),
        ("b", "reason", None, None, "why"),
    }  # fmt: skip


def test_names_of_any_length_and_content_survive(record: Callable[..., str]) -> None:
    folder = record()
    for name in HOSTILE:
        with sonde.span(name, key=name):
            sonde.mark(name)
            sonde.counter(name, 1)
    for table in ("span", "marker", "counter", "summary"):
        rows = read(folder, table, "name")
        assert {row["name"] for row in rows} == set(HOSTILE), table
    assert {row["text"] for row in read(folder, "attribute")} == set(HOSTILE)


@pytest.mark.parametrize("call", [sonde.span, sonde.mark, _core.Region, _core.Count, _core.Mark])
def test_a_name_is_text(call: Callable[..., object]) -> None:
    for wrong in ((), (3,), (None,)):
        with pytest.raises(TypeError):
            call(*wrong)


def test_values_that_are_all_different_leave_room_for_names(record: Callable[..., str]) -> None:
    folder = record(text_bytes="64KiB")
    for i in range(5000):
        sonde.mark("request", id=f"{i:032d}")
    with sonde.span("named all the same"):
        pass
    assert set(spans(folder)) == {"named all the same"}
    rows = read(folder, "attribute")
    lost = sum(row["text"] is None for row in rows)
    query = "SELECT text_lost FROM sonde.loss WHERE table_name = 'event.attribute'"
    assert sonde.open(folder).query(query)["text_lost"].to_pylist() == [lost]
    assert 0 < lost < 5000


def test_an_object_that_is_begun_for_ever_leaves_room_for_others(
    record: Callable[..., str],
) -> None:
    folder = record()
    greedy = sonde.span("greedy")
    for _ in range(100_000):
        greedy.start()
    with sonde.span("modest"):
        pass
    assert "modest" in spans(folder)
    for _ in range(100_000):
        greedy.stop()
    assert summary(folder)["greedy"]["count"] == 1 + 16384 and read(folder, "open_span") == []


def test_a_garbage_collection_at_a_begin_may_end_regions(run) -> None:
    # To begin one in a task makes objects, and that may run any code of the program's.
    run(
        "import contextvars, gc, sonde\n"
        "sonde.start(collector='off', source_stack='off', source_gc='off')\n"
        "region = sonde.span('again')\n"
        "def stop(phase, _info):\n"
        "    if phase == 'start': region.stop()\n"
        "def work():\n"
        "    region.start(); region.start()\n"
        "    gc.callbacks.append(stop); gc.set_threshold(1)\n"
        "    for _ in range(100): region.start()\n"
        "    gc.callbacks.clear()\n"
        "    while region.id is not None: region.stop()\n"
        "contextvars.copy_context().run(work)\n",
        PYTHONMALLOC="debug",
    )


# ---- counters and markers ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-5, 3_000_000_000, 2**63, 2**63 - 1, -(2**63), 3.7, 0, 1e300])
def test_a_counter_takes_any_number(record: Callable[..., str], value: float) -> None:
    folder = record()
    sonde.counter("n", value)
    [row] = read(folder, "counter")
    assert row["value"] == float(value)
    fits = isinstance(value, int) and -(2**63) <= value < 2**63
    assert row["whole"] == (value if fits else None)


def test_a_counter_counts(record: Callable[..., str]) -> None:
    folder = record()
    counter = sonde.counter("steps")
    assert counter.value is None and sonde.counter("steps") is counter
    counter.set_value(6)
    for i in range(100_000):
        if i % 2:
            counter -= 1
        else:
            counter += 1
    counter.increment(2)
    counter.decrement(delta=5)
    assert counter.value == 3 and counter is sonde.counter("steps")
    row = summary(folder)["steps"]
    assert (row["count"], row["last"], row["min"], row["max"]) == (100_003, 3, 3, 8)
    assert 3 <= row["mean"] <= 8
    with pytest.raises(TypeError):
        counter.set_value("many")
    assert counter.value == 3


def test_the_mean_of_a_counter_is_weighed_by_time(record: Callable[..., str]) -> None:
    folder = record()
    counter = sonde.counter("load")
    for value in (10, 100, 10):
        counter.set_value(value)
        time.sleep(0.02 if value == 10 else 0.005)
    sonde.stop()
    rows = read(folder, "counter")
    [end] = sonde.open(folder).query("SELECT MAX(t_ns) AS t FROM event.counter")["t"].to_pylist()
    edges = [row["t_ns"] for row in rows]
    known = sum(v * (b - a) for v, a, b in zip((10, 100), edges, edges[1:], strict=False))
    mean = summary(folder)["load"]["mean"]
    until = (known - mean * (end - edges[0])) / (mean - 10) + end  # what the mean says the end was
    assert 15_000_000 < until - end < 10**9
    assert 10 < mean < 40


def test_a_broken_value_of_a_counter_spoils_no_sum(record: Callable[..., str]) -> None:
    folder = record()
    counter = sonde.counter("loss")
    for value in (float("nan"), 4.0, float("inf"), float("nan"), 4.0, 4.0):
        counter.set_value(value)
        work()
    row = summary(folder)["loss"]
    assert (row["count"], row["min"], row["mean"], row["last"]) == (6, 4, 4, 4)
    assert row["max"] == float("inf")


def test_markers_have_a_scope_and_a_region(record: Callable[..., str]) -> None:
    folder = record()
    marker = _core.Mark("here", "domain")
    with sonde.span("around"):
        for scope in ("global", "process", "thread", "task", "marker"):
            marker.mark(scope)
        marker.mark()
    rows = read(folder, "marker")
    assert [row["scope"] for row in rows] == [
        "global", "process", "thread", "task", "marker", "process",
    ]  # fmt: skip
    assert {row["parent"] for row in rows} == {spans(folder)["around"]["id"]}
    assert {row["domain"] for row in rows} == {"domain"}
    with pytest.raises(ValueError, match="not 'world'"):
        marker.mark("world")


def test_frames_are_numbered(record: Callable[..., str]) -> None:
    folder = record()
    frame = _core.Region("frame", "video", "frame")
    for _ in range(3):
        with frame:
            pass
    frame.start()
    rows = read(folder, "span")
    assert [row["number"] for row in rows] == [1, 2, 3] and rows[0]["kind"] == "frame"
    [still] = read(folder, "open_span")
    assert (still["number"], still["domain"]) == (4, "video")
    frame.stop()


# ---- sums ----------------------------------------------------------------------------------------


def test_the_summary_is_exact_though_the_ring_is_overwritten(record: Callable[..., str]) -> None:
    folder = record(ring_bytes="64KiB")
    region, marker = sonde.span("hot"), _core.Mark("tick")
    for _ in range(5000):
        with region:
            marker.mark()
    assert len(read(folder, "span")) < 5000
    found = summary(folder)
    assert found["hot"]["count"] == found["tick"]["count"] == 5000
    assert found["hot"]["min_ns"] <= found["hot"]["total_ns"] / 5000 <= found["hot"]["max_ns"]
    assert found["hot"]["min_ns"] > 0


def test_the_summary_agrees_with_the_rows(record: Callable[..., str]) -> None:
    folder = record()
    for i in range(300):
        with _core.Region(f"r{i % 3}", "d", "task"):
            work(1000 * (i % 7))
    query = "SELECT name, COUNT(*) AS n, SUM(dur_ns) AS total, MIN(dur_ns) AS least, "
    query += "MAX(dur_ns) AS most FROM event.span GROUP BY name"
    found = summary(folder)
    for row in sonde.open(folder).query(query).to_pylist():
        mine = found[row["name"]]
        assert (mine["count"], mine["total_ns"], mine["min_ns"], mine["max_ns"]) == (
            row["n"], row["total"], row["least"], row["most"],
        )  # fmt: skip
    assert sorted(_core.events_summary()) == sorted(
        (row["kind"], row["domain"], row["name"], *list(row.values())[3:13])
        for row in found.values()
    )


def test_a_sum_counts_from_the_begin_of_its_first_region(record: Callable[..., str]) -> None:
    folder = record()
    with sonde.span("outer"), sonde.span("first"):
        work()
    found, sums = spans(folder), summary(folder)
    assert {name: row["since_t_ns"] for name, row in sums.items()} == {
        name: row["t_ns"] for name, row in found.items()
    }


def test_sums_begin_anew_and_reading_them_changes_nothing(record: Callable[..., str]) -> None:
    folder = record()
    region = sonde.span("a")
    for _ in range(3):
        with region:
            pass
    assert _core.events_summary() == _core.events_summary()
    _core.events_reset()
    assert _core.events_summary() == [] and read(folder, "summary", "name") == []
    with region:
        pass
    [row] = _core.events_summary()
    assert row[:4] == ("span", None, "a", 1) and row[4] == row[5] == row[6]


def test_more_names_than_sums_are_counted_not_mixed(record: Callable[..., str]) -> None:
    folder = record(text_bytes="16MiB")
    for i in range(8192 + 50):
        sonde.mark(f"name {i}")
    found = summary(folder)
    assert len(found) == 8192 and all(row["count"] == 1 for row in found.values())
    assert len(read(folder, "marker")) == 8192 + 50


def test_a_damaged_file_is_told(record: Callable[..., str]) -> None:
    folder = record()
    with sonde.span("a"):
        pass
    sonde.stop()
    path = Path(folder, EVENT_TOTALS)
    raw = bytearray(path.read_bytes())
    raw[20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged, match=r"event\.totals"):
        read(folder, "summary", "name")
    assert len(read(folder, "span")) == 1


# ---- on, off, pauses -----------------------------------------------------------------------------


def test_nothing_is_kept_while_nothing_is_recorded(
    run: Callable[..., object], tmp_path: Path
) -> None:
    run("""if True:
        import resource, sonde
        from sonde import _core
        task, counter, marker = _core.Region("t"), sonde.counter("c"), _core.Mark("m")
        def some(n):
            for i in range(n):
                task.start(); task.stop(); counter.increment(); marker.mark()
                with sonde.span("s", i=i): pass
        some(1000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        some(200_000)
        for _ in range(200_000): task.start()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 1024, grown
        assert _core.events_summary() == []
        folder = sonde.start(collector="off")
        some(1)
        rows = sonde.open(folder).query("SELECT name FROM event.summary ORDER BY name")
        assert rows["name"].to_pylist() == ["c", "m", "s", "t"], rows
        """)


def test_regions_that_touch_a_pause_are_clipped_and_say_so(record: Callable[..., str]) -> None:
    folder = record()
    names = ("before", "into", "inside", "out of", "across", "after")
    region = {name: sonde.span(name) for name in names}
    with region["before"]:
        work()
    region["into"].start()
    region["across"].start()
    work()
    pause_from = time.monotonic_ns()
    sonde.pause()
    with region["inside"]:
        work()
    region["out of"].start()
    work(2_000_000)
    region["into"].stop()
    work(2_000_000)
    sonde.resume()
    pause_to = time.monotonic_ns()
    work()
    region["out of"].stop()
    region["across"].stop()
    with region["after"]:
        pass
    found = spans(folder)
    assert set(found) == set(names) - {"inside"}
    assert {name: row["cut"] for name, row in found.items() if row["cut"]} == {
        "into": "end", "out of": "begin",
    }  # fmt: skip
    into, out, across = found["into"], found["out of"], found["across"]
    assert pause_from <= into["t_ns"] + into["dur_ns"] < pause_to - 4_000_000
    assert pause_from + 4_000_000 <= out["t_ns"] <= pause_to and out["dur_ns"] < 10**9
    assert across["t_ns"] < pause_from and across["t_ns"] + across["dur_ns"] > pause_to
    assert 4_000_000 <= across["paused_ns"] <= pause_to - pause_from
    assert summary(folder)["across"]["total_ns"] == across["dur_ns"] - across["paused_ns"]


def test_a_region_around_a_stretch_between_two_pauses_is_cut_at_both_ends(
    record: Callable[..., str],
) -> None:
    folder = record()
    with sonde.span("first"):
        pass
    sonde.pause()
    region = sonde.span("wide")
    region.start()
    sonde.resume()
    work()
    sonde.pause()
    region.stop()
    sonde.resume()
    row = spans(folder)["wide"]
    assert row["cut"] == "both" and 200_000 <= row["dur_ns"] < 10**9


def test_the_gate_closes_events_alone(record: Callable[..., str]) -> None:
    folder = record()
    emit = sonde.table(type("Row", (), {"__annotations__": {"x": int}}), "job.row")
    region, counter = sonde.span("r"), sonde.counter("c")
    region.start()
    _core.events_gate(False)
    counter.increment(5)
    sonde.mark("m")
    with sonde.span("closed"):
        emit(1)
    _core.events_gate(True)
    counter.increment()
    region.stop()
    assert read(folder, "marker") == [] and set(spans(folder)) == {"r"}
    assert [row["value"] for row in read(folder, "counter")] == [6]
    assert spans(folder)["r"]["paused_ns"] > 0
    assert sonde.open(folder).query("SELECT x FROM job.row").num_rows == 1


def test_a_pause_inside_of_a_closed_gate_counts_once(record: Callable[..., str]) -> None:
    folder = record()
    counter = sonde.counter("level", 1)
    with sonde.span("around"):
        counter.set_value(2)
        work()
        before = time.monotonic_ns()
        _core.events_gate(False)
        sonde.pause()
        work(20_000_000)
        sonde.resume()
        inside = [row for row in _core.events_summary() if row[0] == "counter"]
        from_file = summary(folder)["level"]
        _core.events_gate(True)
        off = time.monotonic_ns() - before
    [row] = read(folder, "span")
    assert 20_000_000 < row["paused_ns"] <= off
    assert inside[0][9] == pytest.approx(from_file["mean"], rel=1e-6)


def test_a_region_of_an_earlier_recording_is_not_in_the_next(record: Callable[..., str]) -> None:
    first = record()
    region = sonde.span("old")
    region.start()
    sonde.stop()
    assert [row["name"] for row in read(first, "open_span")] == ["old"]
    second = record()
    with sonde.span("new"):
        region.stop()
    assert set(spans(second)) == {"new"} and spans(second)["new"]["parent"] is None


def test_the_source_can_be_switched_off_and_on_again(record: Callable[..., str]) -> None:
    folder = record()
    for number, on in enumerate((True, False, True, False)):
        switch_source("event", on)
        with sonde.span(f"r{number}"):
            pass
    assert set(spans(folder)) == {"r0", "r2"}
    switch_source("event", True)
    with sonde.span("last"):
        assert [row["name"] for row in read(folder, "open_span")] == ["last"]


# ---- ends ----------------------------------------------------------------------------------------


def test_what_was_open_when_the_program_was_killed_is_known(
    start: Callable[..., object], root: Path
) -> None:
    process = start("""if True:
        import sonde, time
        sonde.start(collector="off")
        sonde.counter("n", 7)
        with sonde.span("done"): pass
        with sonde.span("the hang"):
            with sonde.span("inner"):
                print("ready")
                time.sleep(600)
        """)
    [session] = list_sessions(str(root))
    live = read(session.folder, "open_span")
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = read(session.folder, "open_span")
    assert found == live and [row["name"] for row in found] == ["the hang", "inner"]
    assert found[1]["parent"] == found[0]["id"] and found[0]["thread"] == process.pid
    assert summary(session.folder)["n"]["mean"] == 7 and set(spans(session.folder)) == {"done"}


def test_sums_and_open_regions_are_kept_when_the_session_is_sealed(
    run: Callable[..., object], root: Path
) -> None:
    run("""if True:
        import sonde
        sonde.start(archive_every="100ms")
        span = sonde.span("open"); span.start()
        with sonde.span("done"): sonde.counter("n", 5)
        """)
    [session] = list_sessions(str(root))
    wait_for(lambda: session.read_sealed() and not os.path.exists(session.path(EVENT_TOTALS)))
    assert {row["name"] for row in read(session.folder, "summary", "name")} == {"done", "n"}
    assert [row["name"] for row in read(session.folder, "open_span")] == ["open"]


def test_a_forked_child_records_from_its_first_event_on(
    run: Callable[..., object], root: Path
) -> None:
    run("""if True:
        import os, sonde
        sonde.start(collector="off")
        with sonde.span("around the fork"):
            pids = []
            for i in range(4):
                pid = os.fork()
                if pid == 0:
                    with sonde.span(f"child {i}"): sonde.counter("i", i)
                    break
                pids.append(pid)
            else:
                for pid in pids: assert os.waitpid(pid, 0)[1] == 0
        """)
    found = {session.pid: set(spans(session.folder)) for session in list_sessions(str(root))}
    assert sorted(map(sorted, found.values())) == [
        ["around the fork"], ["child 0"], ["child 1"], ["child 2"], ["child 3"],
    ]  # fmt: skip


# ---- mirror --------------------------------------------------------------------------------------


def test_a_mirror_is_told_of_each_event_in_order(record: Callable[..., str]) -> None:
    record()
    told: list[tuple[object, ...]] = []
    _core.events_mirror(lambda *what: told.append(what))
    with _core.Region("task", "domain", "task"):
        sonde.counter("c", 2)
        sonde.mark("m")
    _core.events_mirror(None)
    with sonde.span("unseen"):
        pass
    begun = told[0][4]
    assert [(*one[:4], one[5]) for one in told] == [
        ("begin", "domain", "task", "task", None), ("count", None, "c", "counter", 2),
        ("mark", None, "m", "marker", "process"), ("end", "domain", "task", "task", None),
    ]  # fmt: skip
    assert told[3][4] == begun != told[2][4]
