"""sonde.profiler in the place of mxnet.profiler: the original's own cases, each with its file read
back, and what the original got wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import sonde
from conftest import end_processes, use_root
from sonde import _core, profiler
from sonde.errors import ConfigError, NotRun
from sonde.job.mxnet.state import state
from support.trace_viewer import view


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shared") / "sonde"
    yield folder
    end_processes(str(folder))


@pytest.fixture(autouse=True)
def root(shared_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One folder for all tests: whoever writes the files stays, and need not start for each."""
    use_root(shared_root, monkeypatch)
    return shared_root


@pytest.fixture(autouse=True)
def _over(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files go into a folder of the test's own; no profile is under way after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SONDE_COLLECTOR", "off")
    state.has_run = False
    yield
    if state.profile is not None:
        profiler.dump()
    state.settings = type(state.settings)({})
    _core.events_gate(True)
    _core.operators_gate(True)


def configure(name: str, *, run: bool = True, **more: object) -> Path:
    """As the original's tests do it."""
    given = dict.fromkeys(
        ("profile_symbolic", "profile_imperative", "profile_memory", "profile_api"), True
    )
    profiler.set_config(**{**given, "continuous_dump": False, **more}, filename=name)
    if run:
        profiler.set_state("run")
    return Path(name).absolute()


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, of which every byte is JSON."""
    found = json.loads(path.read_bytes())
    events = found["traceEvents"] if isinstance(found, dict) else found
    assert isinstance(events, list)
    return events


def pick(path: Path, name: str) -> list[dict[str, Any]]:
    """The slices, instants and values of this name."""
    return [event for event in read(path) if event["name"] == name and event["ph"] != "M"]


def work() -> list[str]:
    return ["".join("foo" for _ in range(50)) for _ in range(1000)]


def count(counter: profiler.Counter) -> None:
    for i in range(100_000):
        if i <= 50_000:
            counter += 1
        else:
            counter -= 1


# ---- the original's cases ------------------------------------------------------------------------


def test_a_domain_is_called_by_its_name() -> None:
    path = configure("test_profile_create_domain.json")
    domain = profiler.Domain(name="PythonDomain")
    assert str(domain) == "PythonDomain"
    profiler.set_state("stop")
    profiler.dump()
    read(path)


def test_a_task_is_in_the_file_once() -> None:
    path = configure("test_profile_task.json")
    task = profiler.Task(profiler.Domain("PythonDomain::test_profile_task"), "test_profile_task")
    task.start()
    assert len(work()) == 1000
    task.stop()
    profiler.set_state("stop")
    profiler.dump()
    (found,) = pick(path, "test_profile_task")
    assert found["cat"] == "PythonDomain::test_profile_task"


def test_passes_of_a_frame_have_numbers() -> None:
    path = configure("test_profile_frame.json")
    frame = profiler.Domain("D").new_frame("test_profile_frame")
    for _ in range(3):
        frame.start()
        frame.stop()
    profiler.set_state("stop")
    profiler.dump()
    found = pick(path, "test_profile_frame")
    assert [event["args"]["number"] for event in found] == [1, 2, 3]


def test_an_event_needs_no_domain() -> None:
    path = configure("test_profile_event.json")
    event = profiler.Event("test_profile_event")
    event.start()
    work()
    event.stop()
    profiler.set_state("stop")
    profiler.dump()
    assert len(pick(path, "test_profile_event")) == 1


def test_what_happens_in_a_pause_is_left_out_and_what_comes_after_is_not() -> None:
    path = configure("test_profile_tune_pause_resume.json")
    profiler.pause()
    task = profiler.Task(profiler.Domain("D"), "test_profile_task")
    task.start()
    task.stop()
    profiler.resume()
    event = profiler.Event("test_profile_event")
    event.start()
    event.stop()
    profiler.pause()
    profiler.set_state("stop")
    profiler.dump()
    assert pick(path, "test_profile_task") == []
    assert len(pick(path, "test_profile_event")) == 1


def test_a_counter_of_a_hundred_thousand_updates_ends_where_it_should() -> None:
    path = configure("test_profile_counter.json", aggregate_stats=True)
    counter = profiler.Counter(profiler.Domain("D"), "test_profile_counter")
    counter.set_value(5)
    counter += 1
    count(counter)
    profiler.set_state("stop")
    profiler.dump()
    values = pick(path, "test_profile_counter")
    assert len(values) == 100_002
    assert values[-1]["args"]["value"] == 6 + 50_001 - 49_999
    sums = json.loads(profiler.dumps(format="json"))["Counter"]["D"]["test_profile_counter"]
    assert (sums["Count"], sums["Min"], sums["Max"], sums["Last"]) == (100_002, 5, 50_007, 8)


def test_a_continuous_dump_grows_and_is_sound_at_each_look() -> None:
    path = configure("test_continuous_profile.json", continuous_dump=True, aggregate_stats=True)
    domain = profiler.Domain("PythonDomain::test_continuous_profile")
    size = 0
    for i in range(3):
        profiler.Marker(domain, f"StartIteration-{i}").mark("process")
        with profiler.Event("event"):
            work()
        profiler.dump(False)
        assert len(pick(path, f"StartIteration-{i}")) == 1
        assert path.stat().st_size >= size
        size = path.stat().st_size
    assert len(pick(path, "event")) == 3
    assert "event" in profiler.dumps()
    profiler.set_state("stop")


def test_sums_as_json_have_the_three_parts() -> None:
    configure("aggregate.json", aggregate_stats=True)
    with profiler.Event("test_profile_event"):
        pass
    found = json.loads(profiler.dumps(format="json"))
    assert found["Unit"] == {"Time": "ms", "Memory": "kB"}
    assert set(found) == {"Time", "Memory", "Unit"}
    one = found["Time"]["event"]["test_profile_event"]
    assert set(one) == {"Count", "Total", "Min", "Max", "Avg"} and one["Count"] == 1


def test_sums_come_in_the_order_that_is_asked_for() -> None:
    configure("/dev/null", aggregate_stats=True, profile_memory=False)
    for name, times in (("a", 3), ("b", 1), ("c", 2)):
        for _ in range(times):
            with profiler.Task(profiler.Domain("D"), name):
                work()
    for sort_by, ascending in product(("total", "avg", "min", "max", "count"), (False, True)):
        text = profiler.dumps(format="json", sort_by=sort_by, ascending=ascending)
        values = [one[sort_by.capitalize()] for one in json.loads(text)["Time"]["D"].values()]
        assert len(values) == 3
        assert values == sorted(values, reverse=not ascending), (sort_by, ascending)


def test_nothing_is_counted_twice() -> None:
    configure("test_aggregate_duplication.json", aggregate_stats=True, continuous_dump=True)
    profiler.dumps(reset=True)
    domain = profiler.Domain("operator")
    for name in ("sqrt", "_plus_scalar", "_plus_scalar"):
        with domain.new_task(name):
            pass
    profiler.dump(False)
    profiler.dumps()
    found = json.loads(profiler.dumps(format="json"))["Time"]["operator"]
    assert {name: one["Count"] for name, one in found.items()} == {"sqrt": 1, "_plus_scalar": 2}


def test_profiling_some_turns_of_a_loop_records_those() -> None:
    path = configure("test_profiler.json", run=False)
    task = profiler.Task(profiler.Domain("D"), "turn")
    for i in range(5):
        if i == 2:
            profiler.set_state("run")
        if i == 4:
            profiler.set_state("stop")
        with task:
            work()
    profiler.dump(True)
    profiler.set_state("stop")
    assert len(pick(path, "turn")) == 2


def test_the_old_names_warn_and_work() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        profiler.profiler_set_config("all", "old.json")
        profiler.profiler_set_state("run")
        with profiler.Event("old"):
            pass
        profiler.dump_profile()
    assert [one.category for one in said] == [DeprecationWarning] * 3
    assert {one.filename for one in said} == {__file__}
    assert len(pick(Path("old.json"), "old")) == 1


def test_the_documented_example_runs_with_its_import_changed(tmp_path: Path) -> None:
    code = """
from sonde import profiler
profiler.set_config(profile_all=True, filename='chrome_tracing_profile.json',
                    continuous_dump=True, aggregate_stats=True)
profiler.set_state('run')
with profiler.Task(profiler.Domain('mine'), 'first'): sum(range(100000))
profiler.pause()
with profiler.Task(profiler.Domain('mine'), 'unseen'): pass
profiler.resume()
with profiler.Task(profiler.Domain('mine'), 'second'): sum(range(100000))
profiler.set_state('stop')
print(profiler.dumps())
"""
    script = tmp_path / "seed.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    titles = [
        "Name",
        "Total",
        "Count",
        "Time",
        "(ms)",
        "Min",
        "Time",
        "(ms)",
        "Max",
        "Time",
        "(ms)",
        "Avg",
        "Time",
        "(ms)",
    ]
    assert any(line.split() == titles for line in done.stdout.splitlines())
    path = tmp_path / "chrome_tracing_profile.json"
    assert len(pick(path, "first")) == len(pick(path, "second")) == 1
    assert pick(path, "unseen") == [] and "unseen" not in done.stdout


def test_a_trace_of_all_objects_loads_without_a_warning_in_the_real_viewer() -> None:
    path = configure("objects.json", profile_api=False)
    domain = profiler.Domain("D")
    for _ in range(3):
        with domain.new_frame("frame"), domain.new_task("outer"), domain.new_task("inner"):
            work()
    with profiler.Event("event"), profiler.scope("scope"):
        domain.new_counter("counter", -5).set_value(3.7)
    for scope in ("global", "process", "thread", "task", "marker"):
        domain.new_marker(f"marker {scope}").mark(scope)
    domain.new_task("hangs").start()
    profiler.dump()
    (found,) = view(path)
    assert found["warnings"] == []
    names = [event["name"] for event in read(path)]
    assert names.count("frame") == names.count("outer") == names.count("inner") == 3
    assert len([name for name in names if name.startswith("marker ")]) == 5


# ---- what the original got wrong -----------------------------------------------------------------


@pytest.mark.parametrize("call, said", [
    (lambda: profiler.set_config(filname="x"), "the settings are filename, gpu_memory_profile"),
    (lambda: profiler.set_config(profile_all="perhaps"), "profile_all='perhaps'"),
    (lambda: profiler.set_config(dump_period=0), "greater than 0"),
    (lambda: profiler.set_config(dump_period=float("nan")), "greater than 0"),
    (lambda: profiler.set_config(filename="no/such/folder/x.json"), "there is no folder"),
    (lambda: profiler.set_config(filename="."), "not a regular file"),
    (lambda: profiler.set_config(filename=""), "is not a file name"),
    (lambda: profiler.set_config(profile_process="boss"), "worker, server"),
    (lambda: profiler.set_state("go"), "stop, run"),
    (lambda: profiler.pause(profile_process="all"), "worker, server"),
    (lambda: profiler.dumps(format="xml"), "table, json"),
    (lambda: profiler.dumps(sort_by="name"), "total, avg, min, max, count"),
    (lambda: profiler.dumps(ascending="up"), "neither True nor False"),
])  # fmt: skip
def test_what_cannot_be_meant_is_told_at_once(call: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert said in str(caught.value)
    assert isinstance(caught.value, sonde.Error)


def test_a_file_that_is_there_stays_until_there_is_a_new_one() -> None:
    Path("kept.json").write_text("precious")
    path = configure("kept.json")
    assert path.read_text() == "precious"
    profiler.dump()
    read(path)


def test_a_profiler_that_has_not_run_has_nothing_to_dump() -> None:
    with pytest.raises(NotRun, match="set_state"):
        profiler.dump()
    assert profiler.dumps() == profiler.dumps(reset=True) == ""


def test_server_without_a_job_is_an_error_that_says_so() -> None:
    with pytest.raises(sonde.Error, match="this process belongs to no job"):
        profiler.set_state("run", profile_process="server")


def test_reading_changes_nothing_and_ends_nothing() -> None:
    path = configure("read.json", aggregate_stats=True)
    task = profiler.Task(profiler.Domain("D"), "t")
    for _ in range(2):
        with task:
            pass
        assert profiler.dumps() == profiler.dumps()
        profiler.dump(False)
    profiler.set_state("stop")
    sums = profiler.dumps(format="json")
    assert json.loads(sums)["Time"]["D"]["t"]["Count"] == 2
    profiler.dump()
    assert len(pick(path, "t")) == 2
    assert profiler.dumps(format="json") == sums


def test_names_survive_whatever_is_in_them() -> None:
    path = configure("names.json", aggregate_stats=True)
    names = ['quo"te', "back\\slash", "new\nline", "nul\0l", "\N{ROCKET}", "x" * 10_000,
             "x" * 10_000 + "y", ""]  # fmt: skip
    for name in names:
        with profiler.Task(profiler.Domain(f"in {name}"), name):
            profiler.Marker(profiler.Domain(name), name).mark()
    profiler.dump()
    events = [event for event in read(path) if event["ph"] in "Xbi"]
    for name in names:
        assert len([event for event in events if event["name"] == name]) == 2, name[:20]
    found = json.loads(profiler.dumps(format="json"))["Time"]
    assert {key for one in found.values() for key in one} == set(names)
    assert all(len(one) == 1 for one in found.values())


@pytest.mark.parametrize("value", [2**63 - 1, 2**53 + 1, 1 - 2**63])
def test_the_sums_of_a_counter_keep_every_digit_of_a_whole_number(value: int) -> None:
    configure("exact.json", aggregate_stats=True)
    counter = profiler.Domain("D").new_counter("c", value)
    read_sums = lambda: json.loads(profiler.dumps(format="json"))["Counter"]["D"]["c"]  # noqa: E731
    assert read_sums() == {"Count": 1, "Min": value, "Max": value, "Avg": value, "Last": value}
    counter.set_value(0)
    sums = read_sums()
    assert (sums["Last"], sorted((sums["Min"], sums["Max"]))) == (0, sorted((0, value)))


def test_the_methods_of_a_counter_take_their_arguments_by_name() -> None:
    counter = profiler.Domain("D").new_counter("c")
    counter.set_value(value=7)
    counter.increment(delta=3)
    counter.decrement(delta=1)
    assert counter.value == 9
    for call in (counter.set_value, counter.increment):
        with pytest.raises(TypeError, match="expected one argument"):
            call(amount=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needs a value"):
        counter.set_value()  # type: ignore[call-arg]


def test_without_a_domain_there_is_none() -> None:
    configure("none.json", aggregate_stats=True)
    with profiler.Task(None, "t"), profiler.Frame(None, "f"):
        pass
    profiler.Counter(None, "c", 1)
    profiler.Marker(None, "m").mark()
    sums = json.loads(profiler.dumps(format="json"))
    assert [*sums["Time"], *sums["Counter"], *sums["Marker"]] == [
        "frame",
        "task",
        "counter",
        "marker",
    ]


def test_counters_take_any_number_and_give_it_back() -> None:
    path = configure("numbers.json", aggregate_stats=True)
    counter = profiler.Domain("D").new_counter("c", -5)
    for value in (3_000_000_000, 2**40 + 7, 2**63, 3.7):
        counter.set_value(value)
        assert counter.value == value
    profiler.dump()
    told = [event["args"]["value"] for event in pick(path, "c")]
    assert told == [-5, 3_000_000_000, 2**40 + 7, 2**63, 3.7]
    sums = json.loads(profiler.dumps(format="json"))["Counter"]["D"]["c"]
    assert (sums["Count"], sums["Min"], sums["Max"], sums["Last"]) == (5, -5, 2**63, 3.7)


def test_regions_may_recurse_and_be_stopped_elsewhere() -> None:
    path = configure("recursive.json")
    task = profiler.Task(profiler.Domain("D"), "deep")

    @task
    def descend(depth: int) -> int:
        return 0 if depth == 0 else 1 + descend(depth - 1)

    assert descend(2) == 2
    profiler.dump()
    found = pick(path, "deep")
    assert len(found) == 3 and len({event["args"]["id"] for event in found}) == 3


def test_a_region_across_a_pause_is_there_without_the_pause() -> None:
    path = configure("clipped.json")
    task = profiler.Task(profiler.Domain("D"), "around")
    task.start()
    profiler.pause()
    profiler.resume()
    task.stop()
    inside = profiler.Task(profiler.Domain("D"), "into")
    inside.start()
    profiler.pause()
    inside.stop()
    profiler.resume()
    profiler.dump()
    (around,), (into,) = pick(path, "around"), pick(path, "into")
    assert around["args"]["paused_ns"] > 0
    assert into["args"]["cut"] == "end"


def test_what_is_not_finished_is_in_a_live_dump_and_says_so() -> None:
    path = configure("hangs.json")
    task = profiler.Task(profiler.Domain("D"), "never-stopped")
    task.start()
    profiler.dump(False)
    (found,) = pick(path, "never-stopped")
    assert found["args"]["unfinished"] is True
    task.stop()
    profiler.dump()
    (found,) = pick(path, "never-stopped")
    assert "unfinished" not in found["args"]


def test_nothing_is_recorded_or_kept_before_run() -> None:
    path = configure("before.json", run=False, aggregate_stats=True)
    task, counter = (
        profiler.Task(profiler.Domain("D"), "early"),
        profiler.Domain("D").new_counter("c"),
    )
    before = resident()
    for i in range(300_000):
        task.start()
        counter.set_value(i)
        task.stop()
    assert resident() - before < 2**20
    profiler.set_state("run")
    with profiler.Event("late"):
        pass
    profiler.dump()
    assert pick(path, "early") == pick(path, "c") == []
    assert len(pick(path, "late")) == 1
    assert "early" not in profiler.dumps()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_scopes_nest_by_name_and_hold_what_happens_in_them() -> None:
    path = configure("scopes.json")
    with pytest.raises(KeyError), profiler.scope("outer") as outer:
        with profiler.scope("inner:") as inner, profiler.Event("work"):
            pass
        with profiler.scope("alone", append_mode=False) as alone:
            pass
        raise KeyError
    with profiler.scope() as unknown:
        pass
    assert (outer, inner, alone, unknown) == ("outer:", "outer:inner:", "alone:", "<unk>:")
    profiler.dump()
    (within,), (event,) = pick(path, "outer:inner"), pick(path, "work")
    assert within["ts"] <= event["ts"] and event["dur"] <= within["dur"]


def test_another_file_ends_the_profile_and_a_new_one_goes_on() -> None:
    first = configure("first.json")
    with profiler.Event("one"):
        pass
    second = configure("second.json", run=False)
    with profiler.Event("two"):
        pass
    profiler.dump()
    assert len(pick(first, "one")) == len(pick(second, "two")) == 1
    assert pick(first, "two") == pick(second, "one") == []


def test_profiles_one_after_another_share_nothing() -> None:
    for i in range(3):
        path = configure(f"cycle{i}.json", continuous_dump=i % 2 == 1, aggregate_stats=True)
        with profiler.Event(f"e{i}"):
            pass
        if i == 1:
            profiler.dumps()
        profiler.set_state("stop")
        profiler.dump()
        names = {event["name"] for event in read(path)}
        assert {f"e{j}" for j in range(3)} & names == {f"e{i}"}
        assert list(json.loads(profiler.dumps(format="json"))["Time"]["event"]) == [f"e{i}"]


def test_a_recording_that_is_somebody_elses_goes_on() -> None:
    folder = sonde.start(collector="off")
    path = configure("mine.json")
    with profiler.Event("e"):
        pass
    profiler.dump()
    assert len(pick(path, "e")) == 1
    assert sonde.start() == folder
    from sonde.session import Session

    assert folder is not None and Session(folder).is_alive()


def test_a_recording_for_a_profile_ends_with_it() -> None:
    configure("own.json")

    assert sonde.session() is not None
    profiler.dump()
    assert sonde.session() is None
