"""Exact calls: as cProfile counts them, and where cProfile is wrong, right."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import sys
import time

import pytest

import sonde
from sonde.analysis.exact_calls import read_calls
from sonde.session import steering
from sonde.session.target import find_sessions
from support.call_programs import HEAD, ON, WORK, by_name, callers, read

pytestmark = pytest.mark.usefixtures("no_collector")

COMPARE = """
main()  # what is imported or cached at the first call is so in both
if sys.argv[1] == "cprofile":
    import cProfile
    profile = cProfile.Profile()
    profile.enable()
    main()
    profile.disable()
    profile.dump_stats(sys.argv[2])
else:
    import sonde
    sonde.start(**{"collector": "off", "source.call": "on"})
    main()
    sonde.stop()
"""


# A builtin that a subclass hides: cProfile shows the Python method's repr, with its address.
OVERRIDDEN = "<method 'append' of 'list' objects>"


def test_a_program_that_ended_has_the_counts_of_cprofile(run, tmp_path) -> None:
    run(WORK + COMPARE, "cprofile", str(tmp_path / "peer.prof"))
    run(WORK + COMPARE, "sonde")
    peer, ours = pstats.Stats(str(tmp_path / "peer.prof")).stats, read()
    script = str(tmp_path / "program.py")
    functions = {key for key in peer if key[0] == script}
    assert len(functions) > 20
    assert functions | {(script, 1, "<module>")} == {key for key in ours if key[0] == script}
    assert {key: peer[key][:2] for key in functions} == {key: ours[key][:2] for key in functions}
    assert list_edges(peer, script) == list_edges(ours, script)


def list_edges(stats, script: str) -> dict[tuple, tuple[int, int]]:
    """Calls by functions of the script, without what starts and stops a profiler."""
    found = {}
    for (file, line, name), numbers in stats.items():
        shown = OVERRIDDEN if " at 0x" in name else name
        for caller, (nc, cc, _tt, _ct) in numbers[4].items():
            if caller[0] == script and caller[2] != "<module>" and "Profiler" not in name:
                at = (file, line, shown, caller)
                before = found.get(at, (0, 0))
                found[at] = (before[0] + nc, before[1] + cc)
    assert len(found) > 40
    return found


TIMES = """
def inner(): time.sleep(0.03)
def outer(): inner(); time.sleep(0.02); inner()
def again(n):
    time.sleep(0.01)
    if n: again(n - 1)
def timed(work, *args):
    begin = time.perf_counter(); work(*args); return time.perf_counter() - begin
first = time.perf_counter()
sonde.start(**ON)
begin = time.perf_counter()
found = [timed(outer), timed(again, 3)]
least = time.perf_counter() - begin
sonde.stop()
print(json.dumps([*found, least, time.perf_counter() - first]))
"""


def test_times_are_those_the_program_measures_itself(run) -> None:
    outer, again, least, most = json.loads(run(HEAD + TIMES).stdout)
    stats = read()
    sleep = by_name(stats, "<built-in method time.sleep>")
    assert 0.08 <= by_name(stats, "outer")[3] <= outer
    assert 0.04 <= by_name(stats, "again")[3] <= again
    assert least < by_name(stats, "<module>")[3] < most
    assert 0.12 <= sleep[3] <= outer + again
    assert sum(nc for nc, *_ in sleep[4].values()) == sleep[1] == 7
    # All the time is somebody's own, and nobody's twice.
    own = sum(numbers[2] for numbers in stats.values())
    roots = sum(numbers[3] for numbers in stats.values() if not numbers[4])
    assert own == pytest.approx(roots, rel=1e-6)


# ---- in flight ----------------------------------------------------------------------------------

SERVER = """
import os
from sonde import _core
def leaf(): time.sleep(0.002)
def handler():
    for _ in range(20): leaf()
    publish()
def serve_forever():
    inside = _core.clock_ns()
    for turn in range(1, 1000):
        handler()
        print(before, after, called, inside, flush=True)
        while not os.path.exists(sys.argv[1] + str(turn)): time.sleep(0.001)
before = _core.clock_ns()
sonde.start(**ON)
after = _core.clock_ns()
print("ready", flush=True)
called = _core.clock_ns()
serve_forever()
"""


def test_calls_under_way_are_there_with_their_time_up_to_now(start, tmp_path) -> None:
    process = start(HEAD + SERVER, str(tmp_path / "go"))
    for turn in (1, 2, 3):
        before, after, called, inside = map(int, process.stdout.readline().split())
        newest = sonde.open(process.pid).query("SELECT MAX(t_ns) AS t FROM python.call_publication")
        now = newest.to_pylist()[0]["t"]
        stats = read(process.pid)
        assert by_name(stats, "serve_forever")[:2] == (1, 1)
        assert by_name(stats, "<module>")[:2] == (1, 1)
        assert by_name(stats, "handler")[:2] == (turn, turn)
        assert by_name(stats, "leaf")[:2] == (20 * turn, 20 * turn)
        whole, serving = (by_name(stats, name)[3] * 1e9 for name in ("<module>", "serve_forever"))
        assert now - after <= whole <= now - before
        assert (now - inside) * 0.999 <= serving <= (now - called) * 1.001
        (tmp_path / f"go{turn}").touch()


EARLY = """
def below():
    sonde.start(**ON)
    time.sleep(0.01)
def above():
    below()
    time.sleep(0.01)
ready, leave = threading.Event(), threading.Event()
def waiter():
    ready.set(); leave.wait()
thread = threading.Thread(target=waiter)
thread.start(); ready.wait()
above()
leave.set(); thread.join()
"""


def test_calls_that_began_before_it_was_switched_on_count_from_then(run) -> None:
    run(HEAD + EARLY)
    stats = read()
    for name, caller in (("below", "above"), ("above", "<module>"), ("waiter", "run")):
        assert by_name(stats, name)[:2] == (1, 1)
        assert list(callers(stats, name)) == [caller]
    assert by_name(stats, "below")[3] < by_name(stats, "above")[3] < by_name(stats, "<module>")[3]
    assert by_name(stats, "waiter")[3] >= 0.02
    assert not [key for key in stats if key[2] in ("_set_up", "_start_source")]


# ---- threads -------------------------------------------------------------------------------------

THREADS = """
def thr_leaf(): time.sleep(0.02)
def thr_work():
    for _ in range(5): thr_leaf()
def main_leaf(): time.sleep(0.02)
def main_work():
    for _ in range(25): main_leaf()
sonde.start(**ON)
threads = [threading.Thread(target=thr_work) for _ in range(5)]
for thread in threads: thread.start()
main_work()
for thread in threads: thread.join()
"""


def test_calls_of_threads_have_callers_of_their_own_thread(run) -> None:
    run(HEAD + THREADS)
    stats = read()
    assert by_name(stats, "thr_leaf")[:2] == by_name(stats, "main_leaf")[:2] == (25, 25)
    assert list(callers(stats, "thr_leaf")) == ["thr_work"]
    assert list(callers(stats, "main_leaf")) == ["main_work"]
    for leaf in ("thr_leaf", "main_leaf"):
        slept = callers(stats, "<built-in method time.sleep>")[leaf]
        assert slept[0] == 25 and 0.5 <= slept[3] <= by_name(stats, leaf)[3]
    assert by_name(stats, "thr_work")[3] >= by_name(stats, "thr_leaf")[3]


MANY = """
import _thread
def leaf(): pass
def work():
    for _ in range(10): leaf()
def quit(): leaf(); sys.exit()
def bare(done): leaf(); done.release()
sonde.start(**ON)
for turn in range(40):
    threads = [threading.Thread(target=work) for _ in range(4)] + [threading.Thread(target=quit)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if turn % 10 == 0: publish()
    done = _thread.allocate_lock(); done.acquire()
    _thread.start_new_thread(bare, (done,))
    done.acquire()
"""


def test_two_hundred_threads_come_and_go_and_nothing_is_lost(run) -> None:
    run(HEAD + MANY)
    stats = read()
    assert by_name(stats, "work")[:2] == (160, 160)
    assert by_name(stats, "quit")[:2] == by_name(stats, "bare")[:2] == (40, 40)
    assert by_name(stats, "leaf")[:2] == (1680, 1680)
    assert {name: numbers[0] for name, numbers in callers(stats, "leaf").items()} == {
        "work": 1600, "quit": 40, "bare": 40,
    }  # fmt: skip


# ---- what cProfile gets wrong ----------------------------------------------------------------------

DATACLASSES = """
from dataclasses import dataclass
@dataclass
class A:
    x: int
@dataclass
class B:
    x: int
twice = [lambda: 1, lambda: 2]
sonde.start(**ON)
for i in range(100): A(i)
for i in range(7): B(i)
for i in range(3): twice[0]()
twice[1]()
"""


def test_functions_of_one_name_and_line_are_kept_apart(run) -> None:
    run(HEAD + DATACLASSES)
    stats = read()
    made = {key: value[1] for key, value in stats.items() if key[0] == "<string>"}
    assert sorted(made.values()) == [7, 100]
    assert {key[2] for key in made} == {"__init__", "__init__ #2"}
    here = {key[2]: value[1] for key, value in stats.items() if key[0].endswith("program.py")}
    assert sorted((here["<lambda>"], here["<lambda> #2"])) == [1, 3]


ASYNC = """
import asyncio
async def short(): await asyncio.sleep(0.05)
async def work():
    for _ in range(5): await short()
async def deep(n):
    await asyncio.sleep(0.01)
    if n: await deep(n - 1)
async def fail():
    await asyncio.sleep(0.01)
    raise ValueError
async def never(): await asyncio.sleep(3600)
async def main():
    task = asyncio.ensure_future(never()); unstarted = asyncio.ensure_future(never())
    unstarted.cancel()
    begin = time.perf_counter()
    await asyncio.gather(work(), work())
    took = time.perf_counter() - begin
    begin = time.perf_counter()
    await deep(3)
    print(took, time.perf_counter() - begin)
    await asyncio.gather(fail(), return_exceptions=True)
    publish()
    task.cancel()
sonde.start(**ON)
asyncio.run(main())
"""


def test_a_coroutine_is_one_call_with_the_time_it_was_awaited(run) -> None:
    took, deep = map(float, run(HEAD + ASYNC).stdout.split())
    stats = read()
    assert by_name(stats, "work")[:2] == (2, 2)
    assert 2 * 0.25 <= by_name(stats, "work")[3] <= 2 * took
    assert by_name(stats, "work")[2] < by_name(stats, "work")[3]  # it waited most of the time
    assert by_name(stats, "short")[:2] == (10, 10)
    assert callers(stats, "short")["work"][:2] == (10, 10)
    assert by_name(stats, "deep")[:2] == (1, 4)
    assert 0.04 <= by_name(stats, "deep")[3] <= deep
    assert by_name(stats, "fail")[:2] == (1, 1)
    assert by_name(stats, "main")[:2] == (1, 1)
    assert by_name(stats, "main")[3] > took + deep
    # One that was cancelled before it ran, and one that waited all the time.
    calls, total = by_name(stats, "never")[1], by_name(stats, "never")[3]
    assert calls in (1, 2) and 0.29 < total < 1.1 * by_name(stats, "main")[3]


MIDWAY = """
import asyncio
async def server(stop): await stop.wait()
async def main():
    stop = asyncio.Event()
    task = asyncio.ensure_future(server(stop))
    await asyncio.sleep(0.01)
    sonde.start(**ON)
    await asyncio.sleep(0.05)
    stop.set()
    await task
asyncio.run(main())
"""


def test_a_coroutine_that_began_before_counts_from_when_it_was_switched_on(run) -> None:
    run(HEAD + MIDWAY)
    stats = read()
    assert by_name(stats, "main")[:2] == by_name(stats, "server")[:2] == (1, 1)
    assert 0.05 <= by_name(stats, "server")[3] <= by_name(stats, "main")[3]


def leaf() -> None:
    pass


# ---- on and off -----------------------------------------------------------------------------------------

LOOP = """
import time, sonde
def leaf(): pass
sonde.start(collector="off")
print("ready", flush=True)
def loop():
    while True:
        leaf(); time.sleep(0.001)
loop()
"""


def test_it_is_switched_on_and_off_from_outside(start, sonde_cli) -> None:
    process = start(LOOP)
    session = find_sessions(str(process.pid), os.environ["SONDE_DIR"])[0]
    assert read(process.pid) == {}
    for _ in range(2):
        done = sonde_cli("config", process.pid, "source.call=on")
        assert done.returncode == 0 and "source.call" in done.stdout, done.stderr
        time.sleep(0.05)  # let it count something
        steering.configure(session, {"source.call": "off"}, 10)
        stats = read_calls(session)
        elapsed, calls = by_name(stats, "loop")[3], by_name(stats, "leaf")[1]
        # It starts anew each time: no more calls than the sleeps in between allow.
        assert 0 < calls <= elapsed / 0.001 + 1
        assert by_name(stats, "loop")[:2] == (1, 1)
    assert process.poll() is None


def test_it_is_off_until_asked(run) -> None:
    run("import sonde; sonde.start(collector='off')")
    states = sonde.open("all").query("SELECT source FROM sonde.source").to_pylist()
    assert "call" not in {row["source"] for row in states}
    assert read() == {}


def test_cprofile_can_run_at_the_same_time() -> None:
    sonde.start(**ON)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(5):
        leaf()
    profile.disable()
    folder = sonde.session().folder
    sonde.stop()
    profile.create_stats()
    assert by_name(profile.stats, "leaf")[:2] == (5, 5)
    if sys.version_info >= (3, 12):
        assert by_name(read(folder), "leaf")[:2] == (5, 5)
    else:  # it took our place in this thread
        assert not [key for key in read(folder) if key[2] == "leaf"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring has places for both")
def test_a_thread_with_a_profile_function_of_its_own_is_left_alone() -> None:
    profile = cProfile.Profile()
    profile.enable()
    folder = sonde.start(**ON)
    leaf()
    profile.disable()
    profile.create_stats()
    assert by_name(profile.stats, "leaf")[:2] == (1, 1)
    said = sonde.open(folder).query("SELECT state, detail FROM sonde.source WHERE source = 'call'")
    assert said.to_pylist() == [
        {"state": "on", "detail": "except in 1 thread(s) with their own profile function"}
    ]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring has places for both")
def test_a_profiler_of_the_program_that_takes_our_place_is_on_record() -> None:
    folder = sonde.start(**ON)
    leaf()
    profile = cProfile.Profile()
    profile.enable()
    leaf()
    profile.disable()
    sonde.stop()
    sql = "SELECT state, detail FROM sonde.source_log WHERE source = 'call' ORDER BY t_ns"
    said = [(row["state"], row["detail"]) for row in sonde.open(folder).query(sql).to_pylist()]
    lost = "except in 1 thread(s) with their own profile function"
    assert said == [("on", None), ("on", lost), ("off", None)]
    assert by_name(read(folder), "leaf")[:2] == (1, 1)  # up to then


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no sys.monitoring")
def test_where_other_tools_have_all_places_it_says_so() -> None:
    taken = [i for i in (0, 1, 3, 4, 5) if sys.monitoring.get_tool(i) is None]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "other")
    try:
        folder = sonde.start(**ON)
        leaf()
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
    said = sonde.open(folder).query("SELECT state, detail FROM sonde.source WHERE source = 'call'")
    state, detail = said.to_pylist()[0].values()
    assert state == "unavailable" and "sys.monitoring" in detail


# ---- harm ---------------------------------------------------------------------------------------------------

FORK = """
import os
def leaf(): pass
def child():
    for _ in range(7): leaf()
sonde.start(**ON)
leaf(); leaf()
pid = os.fork()
if pid == 0:
    end = time.monotonic() + 30
    # Another thread begins the recording: there is a session before its sources are on.
    while not (sonde.session() and recorder.has_source("call")) and time.monotonic() < end: time.sleep(0.01)
    child()
    sonde.stop()
    os._exit(0)
os.waitpid(pid, 0)
leaf()
"""


def test_a_forked_child_starts_with_nothing(run) -> None:
    run(HEAD + FORK)
    found = [read_calls(sonde.open(session)) for session in sonde.open("all").sessions]
    assert sorted(by_name(stats, "leaf")[1] for stats in found) == [3, 7]
    parent = next(stats for stats in found if by_name(stats, "leaf")[1] == 3)
    assert not [key for key in parent if key[2] == "child"]


DEEP = """
sys.setrecursionlimit(60_000)
def down(n): return 0 if n == 0 else 1 + down(n - 1)
def endless(): endless()
sonde.start(**ON)
threading.stack_size(512 * 2**20)
def work():
    print(down(20_000))
    try: endless()
    except RecursionError: print("stopped")
thread = threading.Thread(target=work); thread.start(); thread.join()
"""


def test_deep_recursion_is_counted(run) -> None:
    assert run(HEAD + DEEP).stdout.split() == ["20000", "stopped"]
    assert by_name(read(), "down")[:2] == (1, 20001)
    assert by_name(read(), "endless")[0] == 1


STRESS = """
import asyncio, gc, random
import sonde.job.sources.call as source
source.EVERY_NS = 3_000_000
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
def gen(n):
    for i in range(n): yield i
def fail(n): raise ValueError if n == 0 else (fail(n - 1) or KeyError)
async def co(n):
    if n: await asyncio.sleep(0); await co(n - 1)
async def many(): await asyncio.gather(*(co(3) for _ in range(5)))
class Loud:
    def __del__(self): fib(3)
def one(rng):
    kind = rng.randrange(7)
    if kind == 0: fib(8)
    elif kind == 1: g = gen(5); next(g); (g.close() if rng.random() < .5 else list(g))
    elif kind == 2:
        try: fail(3)
        except (ValueError, KeyError, TypeError): pass
    elif kind == 3: asyncio.run(many())
    elif kind == 4: exec(compile(f"def f(): return {rng.random()}\\nf()", "<made>", "exec"))
    elif kind == 5: loud = Loud(); loud.me = loud; del loud; gc.collect(0)
    else: sorted([3, 1, 2], key=lambda x: -x)
def work(seed, end):
    rng = random.Random(seed)
    while time.monotonic() < end: one(rng)
    if seed % 3 == 0: sys.exit()
end = time.monotonic() + 4
sonde.start(**ON)
seed = 0
while time.monotonic() < end:
    threads = [threading.Thread(target=work, args=(seed + i, time.monotonic() + .1)) for i in range(4)]
    for thread in threads: thread.start()
    work(1, time.monotonic() + .05)
    publish()
    if seed % 20 == 0:
        recorder._stop_source("call"); recorder._start_source("call")
    for thread in threads: thread.join()
    seed += 4
sonde.stop()
print("survived")
"""


def test_a_mix_of_everything_neither_crashes_nor_goes_below_zero(run) -> None:
    done = run(HEAD + STRESS)
    assert done.stdout == "survived\n" and done.stderr == ""
    low = sonde.open("all").query(
        "SELECT MIN(LEAST(calls, primitive_calls, own_ns, total_ns, calls - primitive_calls)) AS n,"
        " COUNT(*) AS rows FROM python.call"
    )
    assert low.to_pylist()[0]["n"] >= 0 and low.to_pylist()[0]["rows"] > 1000
    states = sonde.open("all").query(
        "SELECT DISTINCT state FROM sonde.source_log WHERE source='call'"
    )
    assert {row["state"] for row in states.to_pylist()} == {"on", "off"}
