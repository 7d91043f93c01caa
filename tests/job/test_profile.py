"""sonde.profile: every function runs and returns its own value; one of them is profiled."""

from __future__ import annotations

import json

import pytest

import sonde
from conftest import wait_for
from sonde.errors import ConfigError
from sonde.session import list_sessions, runs
from support.browser import drive

HEAD = """
import json, os, signal, sys, threading, time, warnings
import sonde
from sonde.session import runs, stack_table as stacks
from sonde.session import Session
from sonde.errors import NotProfiled, RunActive

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(50))

def list_states():
    folder = sonde.session().folder
    return [run.state for run in runs.list_runs(Session(folder))]

def show(**values):
    print(json.dumps(values))
"""


_FIND_BURN = """
const find = (id) => document.getElementById(id);
await until(() => find("details").textContent);
find("search").value = "burn";
find("search").dispatchEvent(new Event("input"));
return { matched: find("matched").textContent };
"""


@pytest.fixture
def profiled(run):
    """Run code after HEAD; what it showed."""

    def profiled(code: str, **env: str) -> dict:
        done = run(HEAD + code, SONDE_COLLECTOR="off", **env)
        return json.loads(done.stdout.splitlines()[-1])

    return profiled


def test_nine_calls_at_once_return_their_values_and_one_is_profiled(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
ready = threading.Barrier(8)
found = []
@sonde.profile
def inner(x):
    return x * 10
@sonde.profile
def work(i):
    burn(0.05)
    value = inner(i) if i == 0 else None
    ready.wait()
    return i, value
threads = [threading.Thread(target=lambda i=i: found.append(work(i))) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
all_runs = runs.list_runs(sonde.session())
show(found=sorted(found, key=str), runs=len(all_runs), result=all_runs[0].result().describe())
""")
    assert shown["found"] == [[0, 0], *([i, None] for i in range(1, 8))]
    assert shown["runs"] == 1
    assert shown["result"]["skipped"] == 8


def test_one_warning_names_the_active_run_and_points_at_the_programs_line(run) -> None:
    done = run(HEAD + """
with sonde.profile() as outer:
    for _ in range(5):
        with sonde.profile() as inner:  # this line
            pass
print(outer.id, inner.id, inner.state)
for _ in range(3):  # a server whose workers meet again and again
    with sonde.profile():
        with sonde.profile() as inner:
            pass
assert "is in progress" in inner.find_state()[1]
""", SONDE_COLLECTOR="off")  # fmt: skip
    run_id, inner_id, state = done.stdout.split()
    lines = [line for line in done.stderr.splitlines() if "ProfileWarning" in line]
    assert len(lines) == 1 and run_id in lines[0] and "program.py" in lines[0]
    assert (inner_id, state) == ("None", "CANCELLED")
    assert "this line" in done.stderr


def test_a_program_that_turns_warnings_into_errors_runs_as_ever(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("error")
@sonde.profile
def inner(): return 2
@sonde.profile
def outer(): return inner() + 1
show(value=outer())
""")
    assert shown["value"] == 3


def test_200_loops_over_all_kinds_of_ends_leave_nothing_behind(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
import sonde.session.folder
outcomes = []
real = runs.start
def failing(*args, **kwargs):
    raise NotProfiled("no room")
errors = [ValueError("v"), SystemExit(3), KeyboardInterrupt(), None]
def count():
    tasks = len(os.listdir("/proc/self/task"))
    return tasks, len(os.listdir("/proc/self/fd")), threading.active_count()
with sonde.profile(): pass
before = count()
for i in range(200):
    error = errors[i % 4]
    runs.start = real if error else failing
    try:
        with sonde.profile():
            if error: raise error
        outcomes.append("ran")
    except BaseException as caught:
        outcomes.append(type(caught).__name__)
runs.start = real
after = count()
with sonde.profile() as last: burn(0.02)
show(outcomes=outcomes, before=before, after=after, last=last.result().samples,
     active=list_states().count("RUNNING"))
""")
    assert shown["outcomes"] == ["ValueError", "SystemExit", "KeyboardInterrupt", "ran"] * 50
    assert shown["before"] == shown["after"]
    assert shown["last"] > 0 and shown["active"] == 0


def test_ctrl_c_at_any_moment_leaves_no_run_behind(profiled) -> None:
    shown = profiled("""
import random
warnings.simplefilter("ignore")
class Stop(BaseException): pass
def on_alarm(number, frame): raise Stop
signal.signal(signal.SIGALRM, on_alarm)
with sonde.profile(): pass
caught = 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
        with sonde.profile(start_timeout=5): sum(range(1000))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
states = list_states()
with sonde.profile() as last: burn(0.02)
show(caught=caught, running=[s for s in states if s in ("RUNNING", "PREPARING")],
     last=last.result().samples)
""")
    assert shown["caught"] > 20 and shown["running"] == [] and shown["last"] > 0


def test_a_burn_at_the_very_start_is_in_the_samples(profiled) -> None:
    shown = profiled("""
@sonde.profile
def work():
    first()
    second()
def first(): burn(0.05)
def second(): burn(0.05)
work()
rows = {row["func"]: row["total_ns"] / 1e9 for row in work.last_run.result().table("cpu")}
show(**rows)
""")
    assert shown["first"] > 0.03 and shown["second"] > 0.03


def test_max_duration_ends_the_samples_and_not_the_work(profiled) -> None:
    shown = profiled("""
with sonde.profile(max_duration=0.5) as run:
    early = time.monotonic()
    while time.monotonic() - early < 0.4: burn(0.01)
    time.sleep(0.3)   # one call without the GIL, over the end
    def late():
        burn(0.4)
    late()
result = run.result()
show(duration=result.duration_s, truncated=result.truncated, reason=result.reason,
     late=[row for row in result.table() if row["func"] == "late"], state=run.state)
""")
    assert shown["duration"] == pytest.approx(0.5, abs=0.2)
    assert shown["truncated"] and "cut after 0.5 s" in shown["reason"]
    assert shown["late"] == [] and shown["state"] == "SUCCEEDED"


def test_shares_of_75_to_25_are_found(profiled) -> None:
    shown = profiled("""
def a(): burn(0.0075)
def b(): burn(0.0025)
with sonde.profile() as run:
    for _ in range(200): a(); b()
rows = {row["func"]: row["total_pct"] for row in run.result().table("cpu")}
show(a=rows["a"], b=rows["b"])
""")
    assert shown["a"] == pytest.approx(75, abs=3) and shown["b"] == pytest.approx(25, abs=3)


def test_work_that_raises_keeps_its_profile_and_says_which_run_it_was(profiled) -> None:
    shown = profiled("""
@sonde.profile
def work():
    burn(0.05)
    raise ValueError("x")
try:
    work()
except ValueError as error:
    notes = error.__notes__
result = work.last_run.result()
show(notes=notes, id=work.last_run.id, samples=result.samples)
""")
    assert any(shown["id"] in note for note in shown["notes"])
    assert shown["samples"] > 10


def test_coroutines_generators_and_methods_are_profiled_to_their_end(profiled) -> None:
    shown = profiled("""
import asyncio
class Thing:
    @sonde.profile
    def method(self, x): return ("method", x)
    @staticmethod
    @sonde.profile
    def static(x): return ("static", x)
    @sonde.profile
    @classmethod
    def of_class(cls, x): return (cls.__name__, x)
@sonde.profile
async def coroutine(x):
    for _ in range(3):
        await asyncio.sleep(0.01)
        in_coroutine()
    return x
def in_coroutine(): burn(0.03)
@sonde.profile
def generator(n):
    for i in range(n):
        in_generator()
        got = yield i
    return "done"
def in_generator(): burn(0.03)
@sonde.profile
async def async_generator(n):
    for i in range(n):
        await asyncio.sleep(0.001)
        in_async_generator()
        try:
            yield i
        except KeyError:
            yield "caught"
def in_async_generator(): burn(0.03)
async def use():
    items = []
    source = async_generator(2)
    items.append(await source.__anext__())
    items.append(await source.athrow(KeyError()))
    async for item in source: items.append(item)
    return items
def consume():
    return (yield from generator(2))
steps = consume()
items = [next(steps)]
try:
    while True: items.append(steps.send(None))
except StopIteration as end:
    items.append(end.value)
values = [Thing().method(1), Thing.static(2), Thing.of_class(3), asyncio.run(coroutine(4)), items,
          asyncio.run(use())]
def total(function, name):
    rows = function.last_run.result().table("cpu")
    return sum(row["total_ns"] / 1e9 for row in rows if row["func"] == name)
show(values=values, is_coroutine=asyncio.iscoroutinefunction(coroutine),
     name=coroutine.__name__, coroutine=total(coroutine, "in_coroutine"),
     generator=total(generator, "in_generator"), agen=total(async_generator, "in_async_generator"))
""")
    assert shown["values"] == [
        ["method", 1], ["static", 2], ["Thing", 3], 4, [0, 1, "done"], [0, "caught", 1],
    ]  # fmt: skip
    assert shown["is_coroutine"] and shown["name"] == "coroutine"
    assert shown["coroutine"] > 0.05 and shown["generator"] > 0.03 and shown["agen"] > 0.03


def test_an_abandoned_generator_ends_its_run(profiled) -> None:
    shown = profiled("""
@sonde.profile
def endless():
    while True: yield 1
items = endless(); next(items); first = endless.last_run.state
items.close()
show(first=first, second=endless.last_run.find_state()[0])
""")
    assert shown == {"first": "RUNNING", "second": "PROCESSING"}


def test_on_conflict_error_is_raised_before_the_work(profiled) -> None:
    shown = profiled("""
ran = []
@sonde.profile(on_conflict="error")
def work(): ran.append(1)
with sonde.profile() as outer:
    try: work()
    except RunActive as error: said = (error.run_id == outer.id)
show(said=said, ran=ran)
""")
    assert shown == {"said": True, "ran": []}


def test_on_conflict_wait_takes_turns_and_does_not_wait_for_itself(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
@sonde.profile(on_conflict="wait", wait_timeout=30)
def work(depth=1):
    burn(0.02)
    return work(depth - 1) + 1 if depth else 0
found = []
threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
all_runs = runs.list_runs(sonde.session())
show(found=found, states=[run.wait(5) for run in all_runs])
""")
    assert shown["found"] == [1] * 4
    assert shown["states"] == ["SUCCEEDED"] * 4


@pytest.mark.parametrize("stop_at_error", [False, True])
def test_a_sampler_that_does_not_answer_does_not_stop_the_work(profiled, stop_at_error) -> None:
    shown = profiled(f"""
sonde.start()
sonde.job.recorder.recorder._native_thread.rest()   # the native thread is gone and says nothing
ran, raised = [], None
begin = time.monotonic()
try:
    with sonde.profile(start_timeout=0.2, stop_at_error={stop_at_error}) as run:
        ran.append(1)
except NotProfiled as error:
    raised = str(error)
first_s = time.monotonic() - begin
sonde.job.recorder.recorder._native_thread.wake()
def works():
    try:
        with sonde.profile() as run: burn(0.05)
        return run.result().samples
    except NotProfiled:
        return 0
deadline = time.monotonic() + 20
while not (samples := works()) and time.monotonic() < deadline: time.sleep(0.05)
show(ran=ran, raised=raised, first_s=first_s, samples=samples)
""")
    assert shown["ran"] == ([] if stop_at_error else [1])
    assert (shown["raised"] is not None) == stop_at_error
    assert shown["samples"] > 0


def test_marks_that_cannot_be_written_fail_the_run_and_not_the_work(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
sonde.start()
folder = sonde.session().folder
with sonde.profile() as run:
    import shutil
    shutil.rmtree(os.path.join(folder, "runs"))   # as a full disk would
    value = 7
with sonde.profile() as second: burn(0.02)
show(value=value, samples=second.result().samples)
""")
    assert shown["value"] == 7 and shown["samples"] > 0


def test_a_damaged_mark_is_a_failed_run(profiled) -> None:
    shown = profiled("""
with sonde.profile() as run: burn(0.02)
with open(run.path("end.nodes"), "r+b") as file: file.write(b"garbage!" * 10)
try: run.result()
except NotProfiled as error: said = str(error)
show(state=run.find_state(), said=said)
""")
    state, reason = shown["state"]
    assert state == "FAILED" and "damaged" in reason and "damaged" in shown["said"]


def test_start_returns_at_once_and_its_states_come_in_order(profiled) -> None:
    shown = profiled("""
run = sonde.profile.start(max_duration=30, tags=["t1", "t2"])
first = run.state
run.wait_running(5); running = run.state
burn(0.05)
run.stop(); stopped = run.state
result = run.result()
names, times = zip(*run.list_states())
show(first=first, running=running, stopped=stopped, names=names, ordered=list(times) == sorted(times),
     tags=result.tags)
""")
    assert shown["first"] in ("PREPARING", "RUNNING") and shown["running"] == "RUNNING"
    assert shown["stopped"] == "PROCESSING"
    assert shown["names"] == ["PREPARING", "RUNNING", "STOPPING", "PROCESSING", "SUCCEEDED"]
    assert shown["ordered"] and shown["tags"] == ["t1", "t2"]


def test_waiting_to_run_ends_in_time(profiled) -> None:
    shown = profiled("""
sonde.start()
sonde.job.recorder.recorder._native_thread.rest()
run = sonde.profile.start()
begin = time.monotonic()
try: run.wait_running(timeout_s=0.3)
except TimeoutError as error: said = str(error)
waited = time.monotonic() - begin
run.cancel()
show(said=said, waited=waited, state=run.state)
""")
    assert "not running after 0.3 s" in shown["said"] and shown["waited"] >= 0.3
    assert shown["state"] == "CANCELLED"


def test_a_process_that_is_not_recorded_is_paused_between_runs(profiled) -> None:
    shown = profiled("""
def samples():
    session = sonde.session()
    return sum(stacks.read_nodes(session).samples), session.read_control()["on"]
with sonde.profile(): burn(0.02)
burn(0.05)  # a sample may have been under way
first, on = samples(); burn(0.1); second, _on = samples()
before = sonde.session().folder
after = sonde.start(stack_every="7ms"); burn(0.1)
show(same=first == second, on=on, other=after != before, now=samples()[1], later=samples()[0] > 0,
     followed="SONDE" in os.environ, every=sonde.session().read_config()["stack.every"])
""")
    assert shown == {
        "same": True, "on": 0, "other": True, "now": 1, "later": True, "followed": True,
        "every": 0.007,
    }  # fmt: skip


def test_a_forked_child_does_not_end_its_parents_run(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
with sonde.profile() as run:
    pid = os.fork()
    if pid: os.waitpid(pid, 0)
    here = os.getpid()
    state = run.state
    if pid: burn(0.05)
if pid == 0: os._exit(0)
show(state=state, samples=run.result().samples)
""")
    assert shown["state"] == "RUNNING" and shown["samples"] > 10


def test_runs_with_one_tag_are_one_profile_with_the_exact_sums(profiled) -> None:
    shown = profiled("""
from sonde.session.run_result import merge
def a(): burn(0.03)
def b(): burn(0.02)
results = []
for work in (a, b, a):
    with sonde.profile(tags="t") as run: work()
    results.append(run.result())
whole = merge(results, "t")
def sums(result): return [sum(sums[i] for _path, sums in result.iter_stacks()) for i in range(4)]
show(each=[sums(one) for one in results], whole=sums(whole), duration=whole.duration_s,
     durations=[one.duration_s for one in results],
     funcs=[row["func"] for row in whole.table("cpu") if row["func"] in "ab"])
""")
    assert shown["whole"] == [sum(column) for column in zip(*shown["each"], strict=True)]
    assert shown["duration"] == pytest.approx(sum(shown["durations"]))
    assert sorted(shown["funcs"]) == ["a", "b"]


@pytest.mark.parametrize("where", ["main", "thread"])
def test_exact_calls_of_a_run_are_exact(profiled, where) -> None:
    shown = profiled(f"""
from sonde.analysis.exact_calls import read_calls
def leaf(): pass
@sonde.profile(sources="call")
def work():
    for _ in range(5000): leaf()
if {where!r} == "main":
    work()
else:
    thread = threading.Thread(target=work); thread.start(); thread.join()
stats = read_calls(sonde.session())
show(calls=[value[1] for key, value in stats.items() if key[2] == "leaf"],
     on="call" in sonde.job.recorder.recorder._sources)
""")
    assert shown == {"calls": [5000], "on": False}


def test_a_run_whose_end_was_not_written_stays_failed(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
sonde.start()
with sonde.profile() as run:
    burn(0.02)
    os.mkdir(run.path("end.nodes.tmp"))  # the mark cannot be written
first = run.find_state()
def later(): burn(0.05)
with sonde.profile() as other: later()
show(first=first, second=run.find_state(), other=other.wait(5))
""")
    assert shown["first"][0] == shown["second"][0] == "FAILED" and shown["other"] == "SUCCEEDED"


def test_a_lock_that_somebody_holds_does_not_hold_the_work(profiled) -> None:
    shown = profiled("""
import fcntl
warnings.simplefilter("ignore")
with sonde.profile(): pass
path = os.path.join(sonde.session().folder, "runs", "lock")
fd = os.open(path, os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
with sonde.profile() as run: value = 5
os.close(fd)
with sonde.profile() as second: pass
show(value=value, state=run.state, reason=run.reason, second=second.wait(5))
""")
    assert shown["value"] == 5 and shown["state"] == "FAILED" and "locked" in shown["reason"]
    assert shown["second"] == "SUCCEEDED"


def test_tasks_wait_for_each_other_without_stopping_the_loop(profiled) -> None:
    shown = profiled("""
import asyncio
turns = []
@sonde.profile(on_conflict="wait")
async def work(i):
    await asyncio.sleep(0.05)
    return i
async def tick():
    while True:
        turns.append(time.monotonic()); await asyncio.sleep(0.005)
async def main():
    ticker = asyncio.create_task(tick())
    found = await asyncio.gather(*[work(i) for i in range(4)])
    ticker.cancel()
    return found
found = asyncio.run(main())
all_runs = runs.list_runs(sonde.session())
show(found=found, states=[run.wait(5) for run in all_runs], turns=len(turns))
""")
    assert shown["found"] == [0, 1, 2, 3] and shown["states"] == ["SUCCEEDED"] * 4
    assert shown["turns"] > 10


def test_one_object_can_be_used_by_many_threads(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
block = sonde.profile()
inside, leave = threading.Event(), threading.Event()
def first():
    with block as run:
        states.append(run); inside.set(); leave.wait()
states = []
thread = threading.Thread(target=first); thread.start(); inside.wait()
with block as second: pass
during = states[0].state
leave.set(); thread.join()
show(second=second.state, during=during, after=states[0].wait(5))
""")
    assert shown == {"second": "CANCELLED", "during": "RUNNING", "after": "SUCCEEDED"}


def test_a_recording_that_begins_anew_can_be_profiled(profiled) -> None:
    shown = profiled("""
sonde.start()
run = sonde.profile.start(); run.wait_running(5)
sonde.stop(); sonde.start()
with sonde.profile() as second: burn(0.02)
show(first=run.wait(5), second=second.wait(5))
""")
    assert shown == {"first": "SUCCEEDED", "second": "SUCCEEDED"}


def test_coroutines_behind_partials_and_objects_are_profiled_to_their_end(profiled) -> None:
    shown = profiled("""
import asyncio, functools
async def plain(seconds): await asyncio.sleep(seconds); return 1
class Callable:
    async def __call__(self, seconds): await asyncio.sleep(seconds); return 2
found = []
for function in (functools.partial(plain, 0.1), functools.partial(Callable(), 0.1)):
    wrapped = sonde.profile(function)
    found.append((asyncio.run(wrapped()), wrapped.last_run.result().duration_s >= 0.1))
show(found=found)
""")
    assert shown["found"] == [[1, True], [2, True]]


def test_calls_without_a_profile_are_counted_also_when_the_run_was_cut(profiled) -> None:
    shown = profiled("""
warnings.simplefilter("ignore")
@sonde.profile
def inner(): pass
with sonde.profile(max_duration=0.3) as run:
    for _ in range(5): inner()
    time.sleep(0.4)
again = runs.find_run(run.id, os.path.dirname(sonde.session().folder))
show(skipped=again.result().skipped)
""")
    assert shown["skipped"] == 5


def test_exact_calls_can_be_had_for_the_time_of_a_run(profiled) -> None:
    shown = profiled("""
import sys
sonde.start()
def leaf(): pass
def is_on(): return "call" in sonde.job.recorder.recorder._sources
with sonde.profile(sources="call") as run:
    deadline = time.monotonic() + 20
    while not is_on() and time.monotonic() < deadline: burn(0.001)
    during = is_on()
    for _ in range(100): leaf()
deadline = time.monotonic() + 20
while is_on() and time.monotonic() < deadline: burn(0.001)
show(during=during, after=is_on())
""")
    assert shown == {"during": True, "after": False}


def test_a_killed_process_leaves_the_profile_of_its_run(start, root) -> None:
    process = start(HEAD + """
with sonde.profile() as run:
    burn(0.3)
    print("ready", flush=True)
    burn(60)
""", SONDE_COLLECTOR="off")  # fmt: skip
    session = next(s for s in list_sessions(str(root)) if s.pid == process.pid)
    run = runs.list_runs(session)[0]
    assert run.state == "RUNNING"
    process.kill()
    process.wait()
    result = run.result()
    assert result.samples > 100 and "ended" in str(result.reason)
    assert any(row["func"] == "burn" for row in result.table())


@pytest.mark.parametrize("how", ["sys.exit(5)", "raise ValueError", "os.kill(0, 15)"])
def test_a_program_that_ends_inside_its_run_keeps_its_exit_code(run, root, how) -> None:
    code = HEAD + f"with sonde.profile() as run:\n    burn(0.05)\n    {how}"
    bare = "import sys, os\nos.setpgrp()\n" + how
    expected = run(bare, check=False).returncode
    done = run(code.replace("import sonde\n", "os.setpgrp()\nimport sonde\n", 1), check=False,
               SONDE_COLLECTOR="off")  # fmt: skip
    assert done.returncode == expected
    session = next(iter(list_sessions(str(root))))
    assert runs.list_runs(session)[0].result().samples > 0


def test_the_collector_works_out_runs_before_it_seals(run, root) -> None:
    run(HEAD + "with sonde.profile() as run: burn(0.05)")
    session = next(iter(list_sessions(str(root))))
    wait_for(lambda: session.read_sealed() is not None)
    assert runs.list_runs(session)[0].result().samples > 0


def test_results_are_written_as_exporters_do(profiled, tmp_path) -> None:
    shown = profiled(f"""
with sonde.profile() as run: burn(0.05)
result = run.result()
files = [sonde.export_result(result, {str(tmp_path / "f.html")!r}, "flamegraph"),
         sonde.export_result(result, {str(tmp_path / "p.prof")!r}, "pstats"),
         sonde.export_result(result, {str(tmp_path / "c.txt")!r}, "collapsed", "wall")]
show(files=files, text=str(result), cpu_ns=round(result.cpu_s * 1e9))
""")
    import pstats

    stats = pstats.Stats(shown["files"][1]).stats  # type: ignore[attr-defined]
    assert any(name == "burn" for _file, _line, name in stats)
    lines = (tmp_path / "c.txt").read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) > 0
    page = drive(tmp_path / "f.html", _FIND_BURN)
    assert page["errors"] == [] and float(str(page["matched"]).split()[1]) > 90
    assert "samples in" in shown["text"] and "burn" in shown["text"]


@pytest.mark.parametrize(
    "settings",
    [{"on_conflict": "no"}, {"every": "soon"}, {"sources": "nothing"}, {"max_duration": "x"},
     {"max_duration": -1}, {"max_duration": 1e12}, {"start_timeout": float("inf")},
     {"wait_timeout": "soon"}],
)  # fmt: skip
def test_wrong_settings_are_said_where_they_are_written(settings) -> None:
    import sonde

    with pytest.raises(ConfigError):
        sonde.profile(**settings)


def test_a_class_is_refused() -> None:
    import sonde

    with pytest.raises(ConfigError, match="decorate the methods"):
        sonde.profile(dict)


def test_a_run_in_this_process_can_be_stopped_from_another(start, sonde_cli) -> None:
    process = start(HEAD + """
with sonde.profile(max_duration=None) as run:
    print("ready", flush=True)
    while run.state == "RUNNING": burn(0.01)
print(run.result().describe()["duration_ns"], flush=True)
time.sleep(60)
""", SONDE_COLLECTOR="off")  # fmt: skip
    listed = json.loads(sonde_cli("profile", "list", "--format", "json").stdout)
    done = sonde_cli("profile", "stop", listed[0]["run"])
    assert done.stdout.strip() == "SUCCEEDED"
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line and float(line) > 0, process.communicate()


def test_importing_sonde_does_not_load_what_profiles(run) -> None:
    done = run("import sonde, sys; print('sonde.job.profile' in sys.modules); sonde.profile; "
               "print('sonde.job.profile' in sys.modules, 'pyarrow' in sys.modules)")  # fmt: skip
    assert done.stdout.split() == ["False", "True", "False"]


def test_there_is_nothing_to_profile_where_nothing_can_be_recorded(run, tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run("import sonde\n@sonde.profile\ndef f(): return 5\nprint(f(), f.last_run.state)",
               SONDE_DIR=str(blocked))  # fmt: skip
    assert done.stdout.split() == ["5", "FAILED"]
    assert "not recording" in done.stderr


def test_what_cannot_be_recorded_is_said_once_and_not_at_every_call(run, tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run("import sonde\n@sonde.profile\ndef f(): return 5\nprint([f() for _ in range(5)])",
               SONDE_DIR=str(blocked))  # fmt: skip
    assert done.stdout.strip() == "[5, 5, 5, 5, 5]"
    assert done.stderr.count("not recording") == 1


def test_the_id_of_a_run_is_logged_at_its_beginning_and_its_end(run) -> None:
    done = run("""
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
import sonde
@sonde.profile
def f(): return f.last_run.id
run_id = f()
class Broken(logging.Handler):
    def handle(self, record): raise ValueError("of the program")
started = sonde.profile.start()
started.stop()
started.stop()
logging.getLogger().addHandler(Broken())
print(f() != run_id, run_id, started.id)
""", SONDE_COLLECTOR="off")  # fmt: skip
    first, second, *lines, last = done.stdout.splitlines()
    is_other, run_id, started_id = last.split()
    assert is_other == "True"
    assert [line.split()[3:5] for line in lines if started_id in line] == [
        ["begins"],
        ["has", "ended;"],
    ]
    assert first == f"sonde.profile INFO {run_id} begins: f"
    assert second.startswith(f"sonde.profile INFO {run_id} has ended")


def test_a_run_keeps_its_user_its_variables_and_the_innermost_frames(profiled) -> None:
    shown = profiled(
        """
def deep(n): return burn(0.1) if n == 0 else deep(n - 1)
with sonde.profile(max_frames=6, environment=["COLOUR", "ABSENT"], user="ann") as run: deep(30)
found = run.result()
rows = sonde.open(os.getpid()).query("SELECT user_name, environment FROM sonde.run").to_pylist()
show(about=[found.describe()["user"], found.describe()["environment"]], rows=rows,
     depth=max(len(path) for path, _ in found.iter_stacks()),
     roots=sorted({path[0][0] for path, _ in found.iter_stacks() if len(path) > 6}),
     whole=found.samples == sum(sums[0] for _, sums in found.iter_stacks()))
""",
        COLOUR="blue",
    )
    assert shown["about"] == ["ann", {"COLOUR": "blue"}]
    assert shown["rows"] == [{"user_name": "ann", "environment": '{"COLOUR": "blue"}'}]
    assert (shown["depth"], shown["roots"], shown["whole"]) == (7, ["<cut>"], True)


@pytest.mark.parametrize("most", [0, -1, 1.5, "12"])
def test_a_number_of_frames_that_is_none_is_an_error(most: object) -> None:
    with pytest.raises(ConfigError, match="max_frames"):
        sonde.profile(max_frames=most)


def test_a_child_forked_while_the_runs_are_locked_does_not_keep_them_locked(profiled) -> None:
    shown = profiled("""
from sonde.session.run import locked
sonde.start()
own = sonde.session()
children = []
def fork():
    child = os.fork()
    if child == 0:
        signal.pause()
    children.append(child)
with locked(own):
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
import fcntl
fd = os.open(own.path("runs", "lock"), os.O_RDWR)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    is_free = True
except BlockingIOError:
    is_free = False
os.kill(children[0], signal.SIGKILL)
os.waitpid(children[0], 0)
show(is_free=is_free)
""")
    assert shown == {"is_free": True}


def test_an_error_whose_notes_are_no_list_reaches_the_caller_as_it_is(profiled) -> None:
    shown = profiled("""
@sonde.profile
def work():
    error = KeyError("mine")
    error.__notes__ = ("of another kind",)
    raise error
try:
    work()
except BaseException as error:
    show(raised=repr(error), state=work.last_run.wait(10))
""")
    assert shown == {"raised": "KeyError('mine')", "state": "SUCCEEDED"}


def test_a_coroutine_runs_though_the_recording_stops_while_its_run_begins(profiled) -> None:
    shown = profiled("""
import asyncio
warnings.simplefilter("ignore")
@sonde.profile
async def work():
    return 5
async def main():
    sonde.start()
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    sonde.stop()
    return await task
show(value=asyncio.run(main()))
""")
    assert shown == {"value": 5}
