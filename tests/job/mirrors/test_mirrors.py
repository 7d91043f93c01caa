"""Mirrors: other tools are told of regions, counters and markers, and hear the same of each."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import pytest

from conftest import wait_for
from sonde import settings
from sonde.errors import ConfigError
from sonde.job.mirrors import _handles, _order
from sonde.store import recording
from support.native_tools import Tool, make_itt, make_nvtx
from support.needs import need

BEGIN = """
import asyncio, json, sys, threading
import sonde
from sonde import _core; from sonde.job import event_mirrors as mirroring
folder = sonde.start(collector=False)
"""
EVERYTHING = (
    BEGIN
    + """
with sonde.span("load", shard=3):
    task = _core.Region("forward", "net", "task")
    task.start()
    task.stop()
frame = _core.Region("batch", "net", "frame")
for _ in range(2):
    frame.start()
    frame.stop()
event = _core.Region("checkpoint", None, "event")
event.start()
event.stop()
count = _core.Count("loss", "net")
count.set_value(-1.5)
count += 2**63
count.set_value(10**400)
_core.Mark("epoch", "net").mark("global")
sonde.mark("here")
sonde.profiler.pause()
sonde.profiler.resume()
print(folder)
"""
)
# Two tasks of one loop, each inside its own region while the other is.
INTERLEAVED = (
    BEGIN
    + """
async def work(name, mine, other):
    with sonde.span(name):
        other.set()
        await mine.wait()

async def main():
    a, b = asyncio.Event(), asyncio.Event()
    await asyncio.gather(work("left", a, b), work("right", b, a))

asyncio.run(main())
"""
)
ELSEWHERE = (
    BEGIN
    + """
for _ in range(3):
    one = _core.Region("download", None, "task")
    one.start()
    other = threading.Thread(target=one.stop)
    other.start()
    other.join()
    with sonde.span("inside"):
        pass
"""
)
CROSSED = (
    BEGIN
    + """
for _ in range(2):
    a, b = sonde.span("a"), sonde.span("b")
    a.start(); b.start(); a.stop(); b.stop()
    with sonde.span("after"):
        pass
"""
)
HOSTILE = ["quote \" back \\ slash", "line\nbreak", "nul\0inside", "emoji \U0001f600", "x" * 10_000,
           "lone \ud800"]  # fmt: skip


@pytest.fixture
def itt(tmp_path: Path) -> Tool:
    pytest.importorskip("pyitt")
    return make_itt(tmp_path)


@pytest.fixture
def nvtx(tmp_path: Path) -> Tool:
    pytest.importorskip("nvtx")
    return make_nvtx(tmp_path)


def read_source(folder: str, name: str) -> tuple[str, str | None] | None:
    rows = recording.open_recording(folder).query(
        f"SELECT state, detail FROM sonde.source_log WHERE source = '{name}' ORDER BY t_ns"
    )
    states = [(row["state"], row["detail"]) for row in rows.to_pylist()]
    return next((one for one in states if one[0] in ("failed", "unavailable")), None) or (
        states[0] if states else None
    )


# ---- ITT -----------------------------------------------------------------------------------------


def test_an_itt_collector_hears_of_everything_in_order(run, itt: Tool) -> None:
    run(EVERYTHING, **itt.env)
    calls = itt.read()
    frames = [words[2] for words in calls if words[0].startswith("frame")]
    assert frames[0] == frames[1] and frames[2] == frames[3]
    assert [words[:2] if words[0].startswith("frame") else words for words in calls] == [
        ("domain_create", "sonde"),
        ("task_begin", "sonde", "load"),
        ("domain_create", "net"),
        ("task_begin", "net", "forward"),
        ("task_end", "net"),
        ("task_end", "sonde"),
        ("domain_create", "net.batch"),
        ("frame_begin_v3", "net.batch"),
        ("frame_end_v3", "net.batch"),
        ("frame_begin_v3", "net.batch"),
        ("frame_end_v3", "net.batch"),
        ("event_start", "checkpoint"),
        ("event_end", "checkpoint"),
        ("counter_create_typed", "net", "loss", "8"),
        ("counter_set_value", "loss", "-1.5"),
        ("counter_set_value", "loss", f"{float(2**63 - 1.5):.17g}"),
        ("counter_set_value", "loss", "inf"),
        ("marker", "net", "epoch", "1", "0"),
        ("marker", "sonde", "here", "2", "0"),
        ("pause",),
        ("resume",),
    ]


def test_regions_of_interleaved_asyncio_tasks_end_as_themselves_in_itt(run, itt: Tool) -> None:
    run(INTERLEAVED, **itt.env)
    begun = {words[3]: words[2] for words in itt.read() if words[0] == "task_begin_overlapped"}
    ended = [begun[words[2]] for words in itt.read() if words[0] == "task_end_overlapped"]
    assert sorted(begun.values()) == ["left", "right"] == sorted(ended)
    assert not [words for words in itt.read() if words[0] in ("task_begin", "task_end")]


def test_a_name_that_once_ended_in_another_thread_is_overlapped_from_then_on(
    run, itt: Tool
) -> None:
    run(ELSEWHERE, **itt.env)
    calls = [words[0] for words in itt.read() if words[0].startswith("task")]
    nested, loose = ["task_begin", "task_end"], ["task_begin_overlapped", "task_end_overlapped"]
    # The first is ended when its own thread has something to say again: in order, and before it.
    assert calls == nested + nested + (loose + nested) * 2
    here, *others = itt.read_threads().values()
    assert [words[0] for words in here].count("task_begin") == 4
    assert [words[0] for other in others for words in other] == ["task_end_overlapped"] * 2


def test_regions_that_cross_are_overlapped_once_that_is_known(run, itt: Tool) -> None:
    run(CROSSED, **itt.env)
    calls = [words[0] for words in itt.read() if words[0].startswith("task")]
    first, second = calls[:6], calls[6:]
    assert first == ["task_begin", "task_begin", "task_end", "task_end", "task_begin", "task_end"]
    assert second == ["task_begin_overlapped", "task_begin", "task_end_overlapped", "task_end",
                      "task_begin", "task_end"]  # fmt: skip


def test_names_of_any_content_arrive_whole_in_itt(run, itt: Tool) -> None:
    code = BEGIN + "for name in json.loads(sys.argv[1]):\n    sonde.span(name).__enter__().stop()\n"
    run(code, json.dumps(HOSTILE), **itt.env)
    names = [words[2] for words in itt.read() if words[0] == "task_begin"]
    assert names == [
        'quote " back \\ slash', "line\\x0abreak", "nul\\0inside", "emoji \U0001f600", "x" * 10_000,
        "lone \\ud800",
    ]  # fmt: skip


def test_where_itt_hides_its_table_markers_are_events_and_counters_whole(run, itt: Tool) -> None:
    hidden = "from sonde.job.mirrors import itt\nitt._Static._find = lambda *_words: None\n"
    run(hidden + EVERYTHING, **itt.env)
    calls = [words for words in itt.read() if words[0].startswith(("counter", "marker", "event"))]
    assert calls == [
        ("event_start", "checkpoint"),
        ("event_end", "checkpoint"),
        ("counter_create_typed", "net", "loss", "1"),
        ("counter_set_value", "loss", "0"),  # as it is made
        ("counter_set_value", "loss", "0"),
        ("counter_set_value", "loss", str(2**63)),
        ("counter_set_value", "loss", str(2**64 - 2**12)),
        ("event_start", "epoch"),
        ("event_start", "here"),
    ]


def test_without_a_collector_itt_is_not_available_and_says_why(run) -> None:
    pytest.importorskip("pyitt")
    folder = run(EVERYTHING, SONDE_EVENT_MIRROR="itt").stdout.strip()
    state, detail = read_source(folder, "mirror.itt")
    assert state == "unavailable" and "INTEL_LIBITTNOTIFY64" in detail


def test_a_tool_that_is_not_installed_is_named_with_what_to_install(run) -> None:
    code = "import sys; sys.modules['pyitt'] = None\n" + EVERYTHING
    folder = run(code, SONDE_EVENT_MIRROR="itt").stdout.strip()
    state, detail = read_source(folder, "mirror.itt")
    assert state == "unavailable" and "pip install 'sonde[itt]'" in detail


# ---- NVTX ----------------------------------------------------------------------------------------


def test_an_nvtx_tool_hears_of_everything_in_order(run, nvtx: Tool) -> None:
    run(EVERYTHING, **nvtx.env)
    calls = [words[:3] for words in nvtx.read() if words[0] != "category"]
    assert calls == [
        ("push", "", "load"), ("domain", "net"), ("push", "net", "forward"), ("pop", "net"),
        ("pop", ""), ("push", "net", "batch"), ("pop", "net"), ("push", "net", "batch"),
        ("pop", "net"), ("push", "", "checkpoint"), ("pop", ""), ("counter", "net", "loss"),
        *[("sample", "net", "loss")] * 3, ("mark", "net", "epoch"),
        ("mark", "", "here"),
    ]  # fmt: skip
    values = [float(words[3]) for words in nvtx.read() if words[0] == "sample"]
    assert values == [-1.5, 2**63 - 1.5, float("inf")]


def test_a_kind_is_a_category_of_nvtx(run, nvtx: Tool) -> None:
    run(EVERYTHING, **nvtx.env)
    known = {words[1:3]: words[3] for words in nvtx.read() if words[0] == "category"}
    pushed = {words[2]: known[words[1], words[3]] for words in nvtx.read() if words[0] == "push"}
    assert pushed == {"load": "span", "forward": "task", "batch": "frame", "checkpoint": "event"}


def test_regions_of_interleaved_asyncio_tasks_end_as_themselves_in_nvtx(run, nvtx: Tool) -> None:
    run(INTERLEAVED, **nvtx.env)
    begun = {words[3]: words[2] for words in nvtx.read() if words[0] == "start"}
    ended = [begun[words[2]] for words in nvtx.read() if words[0] == "end"]
    assert sorted(begun.values()) == ["left", "right"] == sorted(ended)


def test_every_push_has_its_pop_in_its_thread(run, nvtx: Tool) -> None:
    run(ELSEWHERE, **nvtx.env)
    for calls in nvtx.read_threads().values():
        words = [call[0] for call in calls]
        assert words.count("push") == words.count("pop")


def test_a_forked_child_tells_of_its_own_regions_only(run, nvtx: Tool) -> None:
    code = (
        BEGIN
        + """
import os
with sonde.span("parent"):
    pid = os.fork()
    if pid == 0:
        with sonde.span("child"):
            pass
        os._exit(0)
    os.waitpid(pid, 0)
"""
    )
    run(code, **nvtx.env)
    parent, child = ([call[0] for call in calls if call[0] != "category"]
                     for calls in nvtx.read_threads().values())  # fmt: skip
    assert parent == child == ["push", "pop"]


# ---- PyTorch -------------------------------------------------------------------------------------

RECORDED = """
import json, sys
import sonde
sonde.start(collector=False, event_mirror="torch", source_torch=False)
with sonde.span("before torch"):
    import torch
with torch.profiler.profile() as profile:
    with sonde.span("outer"):
        with sonde.span("inner"):
            torch.ones(3).sum()
    sonde.mark("moment")
found = {event.name: event for event in profile.events()}
def name(event):
    return event and event.name
print(json.dumps([name(found["inner"].cpu_parent), name(found["aten::sum"].cpu_parent),
                  "moment" in found, "before torch" in found]))
"""


def test_regions_are_in_a_profile_of_pytorch_with_their_nesting(run) -> None:
    need("torch")
    assert json.loads(run(RECORDED).stdout) == ["outer", "inner", True, False]


# ---- OpenTelemetry -------------------------------------------------------------------------------

TRACED = """
import asyncio, contextvars, json, sys, threading
import sonde
from sonde import _core
from opentelemetry import trace, metrics
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
kept, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
folder = sonde.start(collector=False, event_mirror="otel")
own = trace.get_tracer("own")

def tell():
    names = {span.context.span_id: span.name for span in kept.get_finished_spans()}
    print(json.dumps([
        {"name": span.name, "parent": span.parent and names.get(span.parent.span_id),
         "scope": span.instrumentation_scope.name, "attributes": dict(span.attributes),
         "status": span.status.status_code.name, "why": span.status.description,
         "events": [event.name for event in span.events]}
        for span in kept.get_finished_spans()]))
"""


def trace(run, code: str) -> dict[str, dict]:
    done = run(TRACED + code + "\ntell()\n")
    assert done.stderr == ""  # OpenTelemetry complains there
    return {span["name"]: span for span in json.loads(done.stdout)}


@pytest.fixture
def _otel() -> None:
    pytest.importorskip("opentelemetry.sdk")


@pytest.mark.usefixtures("_otel")
def test_regions_are_spans_inside_the_programs_own(run) -> None:
    spans = trace(run, """
with own.start_as_current_span("request"):
    with sonde.span("load", shard=3, path="/data", fast=True, shape=(2, 3)):
        with own.start_as_current_span("query"):
            with sonde.span("decode"):
                sonde.mark("first byte")
_core.Region("forward", "net", "task").__enter__().stop()
""")  # fmt: skip
    assert {name: span["parent"] for name, span in spans.items()} == {
        "request": None, "load": "request", "query": "load", "decode": "query", "forward": None,
    }  # fmt: skip
    said = spans["load"]["attributes"]
    assert (said["shard"], said["path"], said["fast"]) == (3, "/data", True)
    assert said["sonde.kind"] == "span" and spans["load"]["scope"] == "sonde"
    assert spans["forward"]["scope"] == "net" and spans["decode"]["events"] == ["first byte"]
    assert {span["status"] for span in spans.values()} == {"UNSET"}


@pytest.mark.usefixtures("_otel")
def test_a_region_that_an_exception_ended_is_a_span_with_an_error(run) -> None:
    spans = trace(run, """
try:
    with sonde.span("load"):
        raise ValueError("no such shard")
except ValueError:
    pass
""")  # fmt: skip
    load = spans["load"]
    assert (load["status"], load["why"]) == ("ERROR", "ValueError: no such shard")
    assert load["events"] == ["exception"]


@pytest.mark.usefixtures("_otel")
def test_parents_follow_asyncio_tasks_and_given_ones(run) -> None:
    spans = trace(run, """
async def child(name):
    with sonde.span(name):
        await asyncio.sleep(0.01)

async def main():
    with sonde.span("all"):
        await asyncio.gather(child("one"), child("two"))

asyncio.run(main())
submit = sonde.span("submit")
with submit:
    work = sonde.span("work").under(submit)
    other = threading.Thread(target=lambda: work.__enter__().stop())
    other.start()
    other.join()
""")  # fmt: skip
    assert {name: span["parent"] for name, span in spans.items()} == {
        "all": None, "one": "all", "two": "all", "submit": None, "work": "submit",
    }  # fmt: skip


@pytest.mark.usefixtures("_otel")
def test_a_region_that_ends_elsewhere_is_no_parent_afterwards(run) -> None:
    spans = trace(run, """
lost = sonde.span("lost")
lost.start()
other = threading.Thread(target=lost.stop)
other.start()
other.join()
a, b = sonde.span("a"), sonde.span("b")
a.start(); b.start(); a.stop(); b.stop()
with sonde.span("after"):
    pass
""")  # fmt: skip
    assert {name: span["parent"] for name, span in spans.items()} == {
        "lost": None, "a": None, "b": "a", "after": None,
    }  # fmt: skip


@pytest.mark.usefixtures("_otel")
def test_what_the_program_puts_into_its_context_stays_there_when_a_region_ends(run) -> None:
    done = run(TRACED + """
from opentelemetry import baggage, context
one = sonde.span("one")
one.start()
context.attach(baggage.set_baggage("user", "ada"))
one.stop()
print(baggage.get_baggage("user"))
""")  # fmt: skip
    assert done.stdout.strip() == "ada"


@pytest.mark.usefixtures("_otel")
def test_counters_are_gauges(run) -> None:
    done = run(TRACED + """
_core.Count("loss of net 1", "net").set_value(-2.5)
[[scope]] = [resource.scope_metrics for resource in reader.get_metrics_data().resource_metrics]
[metric] = scope.metrics
print(scope.scope.name, metric.name, metric.description, metric.data.data_points[0].value, sep="|")
""")  # fmt: skip
    assert done.stdout.strip() == "net|loss_of_net_1|loss of net 1|-2.5"


@pytest.mark.usefixtures("_otel")
def test_a_mirror_that_fails_is_switched_off_alone_and_the_program_runs_on(run) -> None:
    done = run(TRACED + """
from opentelemetry.sdk.trace import SpanProcessor
class Broken(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise RuntimeError("no room")
provider.add_span_processor(Broken())
for _ in range(3):
    with sonde.span("load"):
        pass
print(folder)
""")  # fmt: skip
    folder = done.stdout.strip()
    assert done.stderr == "" and read_source(folder, "mirror.otel") == (
        "failed", "RuntimeError: no room",
    )  # fmt: skip
    rows = recording.open_recording(folder).query("SELECT count FROM event.summary")
    assert rows["count"].to_pylist() == [3]


@pytest.mark.usefixtures("_otel")
def test_a_span_processor_with_regions_of_its_own_does_not_call_itself(run) -> None:
    spans = trace(run, """
from opentelemetry.sdk.trace import SpanProcessor
class Marking(SpanProcessor):
    def on_start(self, span, parent_context=None):
        with sonde.span("processor"):
            pass
provider.add_span_processor(Marking())
with sonde.span("load"):
    pass
""")  # fmt: skip
    assert list(spans) == ["load"]


# ---- which, and when -----------------------------------------------------------------------------


def test_nobody_is_told_where_nobody_listens(run) -> None:
    code = EVERYTHING + "print(any('sonde.job.mirrors' in name for name in sys.modules))"
    folder, loaded = run(code).stdout.split()
    assert loaded == "False"
    rows = recording.open_recording(folder).query(
        "SELECT * FROM sonde.source_log WHERE source LIKE 'mirror.%'"
    )
    assert rows.num_rows == 0


def test_a_tool_in_the_environment_is_not_told_when_the_user_says_off(run, nvtx: Tool) -> None:
    run(EVERYTHING, SONDE_EVENT_MIRROR="off", **nvtx.env)
    assert nvtx.read() == []


def test_a_running_program_begins_and_ends_to_tell_a_tool(start, sonde_cli, nvtx: Tool) -> None:
    code = (
        BEGIN
        + """
print("ready", flush=True)
import time
with sonde.span("around"):
    while True:
        with sonde.span("step"):
            time.sleep(0.01)
"""
    )
    process = start(code, SONDE_EVENT_MIRROR="off", **nvtx.env)
    assert nvtx.read() == []
    assert sonde_cli("config", process.pid, "event.mirror=nvtx").returncode == 0
    wait_for(lambda: ("push", "", "step") in [words[:3] for words in nvtx.read()])
    assert sonde_cli("config", process.pid, "event.mirror=off").returncode == 0
    log = wait_for(lambda: read_source(str(process.pid), "mirror.nvtx"))
    assert log is not None
    after = [words[0] for words in nvtx.read() if words[0] in ("push", "pop")]
    assert after.count("push") == after.count("pop") and "around" not in str(nvtx.read())


def test_the_setting_names_mirrors_that_exist() -> None:
    key = settings.list_keys()["event.mirror"]
    assert key.read("nvtx, itt,nvtx") == "nvtx,itt" and key.read("off") == "" == key.read("")
    assert key.read("auto") == "auto" and key.show("") == "off"
    for wrong in ("vtune", "auto,itt"):
        with pytest.raises(ConfigError, match=r"event\.mirror"):
            key.read(wrong)


# ---- parts ---------------------------------------------------------------------------------------


def test_names_without_end_become_one_name() -> None:
    made = _handles.HandleTable(lambda domain, name, kind: (domain, name, kind))
    for number in range(_handles.MAX_NAMES + 50):
        last = made[None, f"step {number}", "span"]
    assert last == (None, _handles.REST, "span") and len(made) == _handles.MAX_NAMES + 1
    assert made[None, "step 7", "span"] == (None, "step 7", "span")


def test_an_end_without_its_begin_is_nothing() -> None:
    nesting = _order.Nesting()
    nesting.end(7)
    nesting.end_all()


def test_what_is_open_is_ended_in_order_when_a_mirror_stops() -> None:
    nesting, ended = _order.Nesting(), []

    def begin(number: int, nests: bool = True) -> None:
        end = partial(ended.append, number)
        nesting.begin(number, "name", int if nests else None, end, lambda: end)

    for number in range(3):
        begin(number)
    begin(3, nests=False)
    other = threading.Thread(target=begin, args=(4,))
    other.start()
    other.join()
    nesting.end_all()
    assert ended == [3, 2, 1, 0]  # the one of the other thread cannot be ended from here
