"""The stack source: what is sampled of stacks that are hard to read."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import Session, list_sessions, stack_table
from sonde.session.target import find_sessions
from stress import stacks as stress
from support import native_tools, oracle

JOB = """
import sys, threading, time
import sonde

def spin(until):
    x = 0
    while time.monotonic() < until:
        x += 1

{code}

sys.setrecursionlimit(5000)
threading.stack_size(64 * 2**20)
folder = sonde.start(collector=False, follow=False, stack_every="1ms")
thread = threading.Thread(target=work, args=(time.monotonic() + {seconds},))
thread.start()
thread.join()
sonde.stop()
print(folder)
"""
ROUNDS = 2  # `make stress` takes more


@pytest.fixture
def sample(tmp_path: Path):
    """Runs code that defines work(until); the functions of every stack with spin, innermost first."""

    def run(code: str, seconds: float = 0.5) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", JOB.format(code=code, seconds=seconds)],
            env={"SONDE_DIR": str(tmp_path), "PATH": ""},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=240,
        )
        nodes = stack_table.read_nodes(Session(done.stdout.strip()))
        found = []
        for place in range(len(nodes)):
            names = [nodes.frame(at).func for at in nodes.walk(place)]
            if nodes.samples[place] and names[0] == "spin":
                found.append(names)
        return found

    return run


def test_a_stack_deeper_than_512_frames_is_cut_and_says_so(sample):
    found = sample("def work(until, n=800):\n  return work(until, n - 1) if n else spin(until)")
    assert found
    for names in found:
        assert names[-1] == "<cut>"
        assert names[:-1] == ["spin", *["work"] * 511]


def test_generators_on_a_stack_keep_their_order(sample):
    found = sample(
        "def generate(until, n):\n"
        "  if n:\n    yield from generate(until, n - 1)\n"
        "  else:\n    spin(until)\n    yield\n"
        "def work(until):\n  list(generate(until, 40))"
    )
    assert found
    for names in found:
        assert names[:43] == ["spin", *["generate"] * 41, "work"]


def test_calls_through_c_code_keep_their_callers(sample):
    found = sample(
        "def work(until, n=40):\n"
        "  return sorted([1], key=lambda _: work(until, n - 1)) if n else spin(until)"
    )
    assert found
    for names in found:
        assert names.count("work") == 41
        assert sum("lambda" in name for name in names) == 40


def test_a_stack_over_many_chunks_of_memory_is_whole(sample):
    """A chunk of the data stack is 16 KB; these frames take about 1 KB each."""
    values = ", ".join(f"v{i}" for i in range(100))
    found = sample(
        f"def work(until, n=100):\n  {values} = range(100)\n"
        "  return work(until, n - 1) if n else spin(until)"
    )
    assert found
    for names in found:
        assert names[:102] == ["spin", *["work"] * 101]


def test_more_code_than_is_kept_is_read_again(sample):
    """Each of these functions has 20,000 instructions, and all are on one stack."""
    found = sample(
        "body = 'def f(until, n):\\n if n: return calls[n - 1](until, n - 1)\\n spin(until)\\n'\n"
        "exec(body + ' x = 1\\n' * 10_000)\n"
        "def copy(n):\n"
        "  code = f.__code__.replace(co_name=f'f{n}')\n"
        "  if hasattr(code, 'co_qualname'): code = code.replace(co_qualname=f'f{n}')\n"
        "  return type(f)(code, globals())\n"
        "calls = [copy(n) for n in range(60)]\n"
        "def work(until):\n  calls[59](until, 59)",
        seconds=5,  # reading all of them takes a tenth of a second of a free processor
    )
    assert found
    for names in found:
        assert names[:62] == ["spin", *(f"f{n}" for n in range(60)), "work"]


def test_lines_of_one_function_may_be_far_apart(run):
    lines = ["import sonde, time", "def f():", " spin()", *[""] * 70_000, " spin()", "def spin():",
             " end = time.monotonic() + 0.3", " while time.monotonic() < end: pass",
             "print(sonde.start(collector='off'))", "f()"]  # fmt: skip
    nodes = stack_table.read_nodes(Session(run("\n".join(lines)).stdout.strip()))
    seen = {(frame.func, frame.line) for frame in map(nodes.frame, range(len(nodes)))}
    assert {("f", 3), ("f", 70_004)} <= seen


# ---- what a sample says --------------------------------------------------------------------------

SHARES = """
import time, sonde
def burn(s):
    end = time.thread_time() + s
    while time.thread_time() < end: pass
def half(): burn(0.010)
def third(): burn(0.006)
def sixth(): burn(0.003)
def rest(): burn(0.001)
folder = sonde.start(collector=False, stack_every="1ms")
begin, used = time.monotonic_ns(), time.thread_time_ns()
for _ in range(100): half(); third(); sixth(); rest()
took, used = time.monotonic_ns() - begin, time.thread_time_ns() - used
sonde.stop()
print(folder, took, used)
"""


def ask(folder: str, sql: str) -> list[dict]:
    return sonde.open(Session(folder)).query(sql).to_pylist()


def test_shares_of_a_known_program_and_its_clocks(run) -> None:
    folder, took, used = run(SHARES).stdout.split()
    rows = ask(
        folder,
        "SELECT func, SUM(cpu_ns)::BIGINT AS cpu FROM python.stack_sample JOIN python.frame USING "
        "(stack) WHERE func IN ('half', 'third', 'sixth', 'rest') GROUP BY func",
    )
    whole = sum(row["cpu"] for row in rows)
    found = {row["func"]: 100 * row["cpu"] / whole for row in rows}
    for func, share in (("half", 50), ("third", 30), ("sixth", 15), ("rest", 5)):
        assert abs(found[func] - share) < 5, found  # 2 s: one sigma is a point
    sums = ask(folder, "SELECT SUM(wall_ns)::BIGINT w, SUM(cpu_ns)::BIGINT c FROM "
               "python.stack_sample JOIN python.frame USING (stack) WHERE func = 'burn'")[0]  # fmt: skip
    # The kernel's clocks are the witness: all of the time is somebody's, and none is counted twice.
    assert 0.95 * int(took) < sums["w"] < 1.02 * int(took)
    assert 0.95 * int(used) < sums["c"] < 1.02 * int(used)


def test_rows_and_the_tree_say_the_same(run) -> None:
    folder = run(SHARES).stdout.split()[0]
    rows = ask(folder, "SELECT SUM(samples)::BIGINT s, SUM(wall_ns)::BIGINT w, SUM(cpu_ns)::BIGINT c,"
               " SUM(CASE WHEN gil THEN wall_ns ELSE 0 END)::BIGINT g FROM python.stack_sample")  # fmt: skip
    tree = ask(folder, "SELECT SUM(samples)::BIGINT s, SUM(wall_ns)::BIGINT w, SUM(cpu_ns)::BIGINT c,"
               " SUM(gil_ns)::BIGINT g FROM python.stack")  # fmt: skip
    assert rows == tree


THREADS = """
import os, sys, threading, time, sonde
folder = sonde.start(collector=False, stack_every="1ms", {settings})
over = []
def busy():
    while not over: pass
def idle():
    while not over: time.sleep(0.1)
threads = [threading.Thread(target=busy, name="busy"), threading.Thread(target=idle, name="idle")]
for thread in threads: thread.start()
ids = {{thread.name: thread.native_id for thread in threads}}
time.sleep(0.3)
frames = sys._current_frames()
seen = frames[threads[1].ident]
print(folder, ids["busy"], ids["idle"], seen.f_lineno)
time.sleep(0.2)
over.append(1)
for thread in threads: thread.join()
time.sleep(0.05)
"""


@pytest.mark.parametrize("settings", ["", "stack_slow=True"])
def test_threads_have_names_states_and_ends(run, settings: str) -> None:
    folder, busy, idle, line = run(THREADS.format(settings=settings)).stdout.split()
    rows = ask(folder, "SELECT thread, MAX(name) AS name, LIST(state ORDER BY t_ns) AS states "
               "FROM python.thread GROUP BY thread")  # fmt: skip
    threads = {row["thread"]: row for row in rows}
    assert threads[int(busy)]["name"] == "busy" and threads[int(idle)]["name"] == "idle"
    for tid in (int(busy), int(idle)):
        assert threads[tid]["states"][0] == "started" and threads[tid]["states"][-1] == "ended"
    by_thread = ask(folder, "SELECT thread, SUM(wall_ns)::BIGINT w, SUM(cpu_ns)::BIGINT c, "
                    "COUNT(*) AS n FROM python.stack_sample GROUP BY thread")  # fmt: skip
    sums = {row["thread"]: row for row in by_thread}
    at_work, at_rest = sums[int(busy)], sums[int(idle)]  # how much a busy thread gets is not ours
    assert at_work["c"] / at_work["w"] > 3 * at_rest["c"] / at_rest["w"]
    assert at_rest["c"] < 0.05 * at_rest["w"]
    leaves = ask(folder, f"SELECT DISTINCT lineno FROM python.stack_sample JOIN python.frame USING "
                 f"(stack) WHERE thread = {idle} AND depth = 0 AND func = 'idle'")  # fmt: skip
    assert [row["lineno"] for row in leaves] == [int(line)]


def test_an_idle_thread_is_a_row_a_second(run) -> None:
    done = run(
        "import sonde, time\n"
        "print(sonde.start(collector=False, stack_every='1ms'))\n"
        "time.sleep(2.2)"
    )
    row = ask(done.stdout.strip(), "SELECT COUNT(*) AS n, SUM(samples)::BIGINT AS s FROM "
              "python.stack_sample WHERE idle")[0]  # fmt: skip
    assert row["s"] > 500 and row["n"] < 20


def test_the_slow_way_says_so(run) -> None:
    done = run(
        "import sonde, time; print(sonde.start(collector=False, stack_slow=True)); time.sleep(.2)"
    )
    rows = ask(
        done.stdout.strip(),
        "SELECT detail FROM sonde.source_log WHERE source = 'stack' AND state = 'on'",
    )
    assert rows == [{"detail": "slow, through the GIL, because stack.slow is set; a fatal signal "
                     "leaves no last stacks"}]  # fmt: skip
    assert ask(
        done.stdout.strip(), "SELECT samples > 3 AS some FROM python.stack WHERE func = '<module>'"
    )[0]["some"]


def test_where_the_kernel_does_not_tell_what_threads_wait_for_the_recording_says_so(
    start, root, tmp_path
) -> None:
    start(
        "import sonde, time\nsonde.start(collector=False, stack_every='2ms')\n"
        "print('ready', flush=True)\ntime.sleep(300)",
        **native_tools.forbid_file(tmp_path, "/syscall"),
    )
    asked = "SELECT detail FROM sonde.source_log WHERE source = 'stack' AND detail IS NOT NULL"

    def find_told() -> list[dict[str, object]]:
        sessions = list_sessions(str(root))
        return [row for one in sessions for row in ask(one.folder, asked)]

    known = (
        "what threads wait for is not known (/proc/self/task/*/syscall: it has dropped rights, or "
    )
    wait_for(lambda: [row for row in find_told() if f"{known}hides its memory)" in row["detail"]])


DOCTORED = """
import ctypes, sonde, time
offsets = (ctypes.c_uint64 * 64).in_dll(ctypes.pythonapi, "_PyRuntime")
for word in range({first}, {last}):
    offsets[word] += 1 << 17
folder = sonde.start(collector=False)
from sonde.session import Session, stack_table
end = time.monotonic() + 60
while not any(stack_table.read_nodes(Session(folder)).samples) and time.monotonic() < end:
    time.sleep(.1)
print(folder)
"""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="it does not say how it lays things out")
@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (0, 1, "_Py_DebugOffsets"),
        (1, 2, "version"),
        (2, 3, "free_threaded"),
        (3, 64, "thread_state"),
    ],
)
def test_a_python_with_another_layout_is_sampled_the_slow_way(run, first, last, said) -> None:
    folder = run(DOCTORED.format(first=first, last=last)).stdout.strip()
    (row,) = ask(
        folder, "SELECT detail FROM sonde.source_log WHERE source = 'stack' AND state = 'on'"
    )
    assert row["detail"].startswith(
        "slow, through the GIL: this Python differs from the one that sonde was compiled for ("
        + said
    )
    assert ask(folder, "SELECT samples FROM python.stack WHERE func = '<module>'")


# ---- being steered -------------------------------------------------------------------------------


def test_the_interval_is_changed_while_it_runs(start, sonde_cli) -> None:
    process = start(
        "import sonde, time\n"
        "sonde.start(collector=False, stack_every='1s')\n"
        "print('ready', flush=True)\n"
        "def busy():\n    while True: time.sleep(0)\n"
        "busy()"
    )
    done = sonde_cli("config", process.pid, "stack.every=1ms")
    assert done.returncode == 0 and "1ms" in done.stdout, done.stderr
    recording = sonde.open(process.pid)
    sql = "SELECT COUNT(*) AS n FROM python.stack_sample"
    wait_for(lambda: recording.query(sql).to_pylist()[0]["n"] > 100)


def test_off_and_on_again_goes_on_in_the_same_tree(start, sonde_cli) -> None:
    process = start(
        "import sonde, time\n"
        "sonde.start(collector=False, stack_every='1ms')\n"
        "print('ready', flush=True)\n"
        "def busy():\n    while True: time.sleep(0)\n"
        "busy()"
    )
    session = find_sessions(str(process.pid), os.environ["SONDE_DIR"])[0]
    counts = []
    for state in ("off", "on", "off"):
        assert sonde_cli("config", process.pid, f"source.stack={state}").returncode == 0
        nodes = stack_table.read_nodes(session)
        counts.append(sum(nodes.samples))
        assert len(set(nodes.hashes)) == len(nodes)  # no stack is there twice
        if state == "on":
            wait_for(lambda: sum(stack_table.read_nodes(session).samples) > counts[-1] + 10)
    assert counts[0] < counts[2]


def test_a_pause_is_nobodys_time(start, sonde_cli) -> None:
    process = start(
        "import sonde, time\n"
        "sonde.start(collector=False, stack_every='1ms')\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)"
    )
    assert sonde_cli("pause", process.pid).returncode == 0
    session = find_sessions(str(process.pid), os.environ["SONDE_DIR"])[0]
    before = sum(stack_table.read_nodes(session).wall_ns)
    time.sleep(1)
    assert sonde_cli("resume", process.pid).returncode == 0
    wait_for(lambda: sum(stack_table.read_nodes(session).wall_ns) > before)
    assert sum(stack_table.read_nodes(session).wall_ns) - before < 0.9e9


# ---- what a process can do to it -------------------------------------------------------------------


def test_a_forked_child_has_stacks_of_its_own(run) -> None:
    done = run(
        "import os, sonde, time\n"
        "sonde.start(collector=False, stack_every='1ms')\n"
        "def child():\n"
        "    end = time.process_time() + 0.4\n"  # not monotonic(): it may lack a CPU
        "    while time.process_time() < end: pass\n"
        "def parent(pid): os.waitpid(pid, 0)\n"
        "pid = os.fork()\n"
        "if pid == 0: child()\n"
        "else: parent(pid); print(os.getpid(), pid)"
    )
    parent, child = done.stdout.split()
    sql = "SELECT pid, func FROM python.stack WHERE func IN ('child', 'parent') GROUP BY ALL"
    rows = {(str(row["pid"]), row["func"]) for row in sonde.open("all").query(sql).to_pylist()}
    assert rows == {(parent, "parent"), (child, "child")}


BOTH = """
import sonde, threading, time
try: import _interpreters as sub; go = sub.exec
except ImportError: import _xxsubinterpreters as sub; go = sub.run_string
folder = sonde.start(collector=False, stack_every="1ms")
code = '''
import time
def inner():
    end = time.monotonic() + 0.4
    while time.monotonic() < end: pass
inner()
'''
number = sub.create()
def outer(): go(number, code)
thread = threading.Thread(target=outer)
thread.start()
thread.join()
print(folder, int(number), thread.native_id)
sub.destroy(number)
sonde.stop()
"""


def test_a_thread_in_a_subinterpreter_has_one_stack_that_lies_in_both(run) -> None:
    folder, number, thread = run(BOTH).stdout.split()
    rows = ask(
        folder,
        "SELECT thread, interpreter, list(func ORDER BY depth) AS funcs "
        "FROM python.stack_sample JOIN python.frame USING (stack) "
        "GROUP BY thread, interpreter, t_ns HAVING list_contains(list(func), 'inner')",
    )
    if sys.version_info < (
        3,
        13,
    ):  # nothing tells which thread runs it: a guess would be a wrong stack
        sums = "SELECT max(skipped_interpreters) AS n FROM python.sampling"
        assert rows == [] and ask(folder, sums)[0]["n"] > 0
        return
    assert len(rows) > 10
    assert {(row["thread"], row["interpreter"]) for row in rows} == {(int(thread), int(number))}
    assert all("outer" in row["funcs"] and row["funcs"][0] == "inner" for row in rows)


EVERY_NAME = """
import sonde, sys
try: import _interpreters as sub; go = sub.exec
except ImportError: import _xxsubinterpreters as sub; go = sub.run_string
sonde.start(collector=False)
code = f"import sys; sys.path[:] = {sys.path}\\n" + '''
import sonde
with sonde.span("a", n=1) as span: span.set(m=2)
@sonde.span("f")
def work(): return 3
sonde.mark("m"); sonde.counter("c").increment(); sonde.step()
counter = sonde.counter("d", 4); counter += 1
sonde.table(type("Row", (), {"__annotations__": {"n": int}}))(5)
sonde.pause(); sonde.resume(); sonde.stop()
print(work(), sonde.start(), sonde.session(), sonde.snapshot(), flush=True)
'''
print(go(sub.create(), code))
sonde.stop()
"""


def test_a_subinterpreter_may_use_every_name(run) -> None:
    done = run(EVERY_NAME)
    assert done.stdout.split("\n")[:2] == ["3 None None None", "None"]
    assert done.stderr.count("sonde: not recording: this is a subinterpreter") == 1


def test_a_table_without_room_counts_and_keeps_the_time(run) -> None:
    done = run(
        "import sonde, time\n"
        "folder = sonde.start(collector=False, stack_every='1ms', stack_bytes='16KiB')\n"
        "def deep(n, until):\n"
        "    return deep(n - 1, until) if n else spin(until)\n"
        "def spin(until):\n"
        "    while time.monotonic() < until: pass\n"
        "for n in range(300): deep(n, time.monotonic() + 0.002)\n"
        "sonde.stop(); print(folder)"
    )
    folder = done.stdout.strip()
    rows = ask(folder, "SELECT samples, wall_ns FROM python.stack WHERE func = '<no room>'")
    lost = ask(folder, "SELECT MAX(stacks_lost) AS n FROM python.sampling")[0]["n"]
    assert lost > 0 and rows[0]["samples"] >= lost and rows[0]["wall_ns"] > 0


def test_thousands_of_threads_are_seen(start) -> None:
    process = start(
        "import sonde, threading, time\n"
        "threading.stack_size(256 * 1024)\n"
        "sonde.start(collector=False)\n"
        "def wait(): time.sleep(1000)\n"
        "try:\n"
        f"    for _ in range({1000 * ROUNDS}):\n"
        "        threading.Thread(target=wait, daemon=True).start()\n"
        "except RuntimeError: pass\n"
        "print('ready', flush=True)\n"
        "wait()"
    )
    recording = sonde.open(process.pid)
    threads = len(os.listdir(f"/proc/{process.pid}/task"))
    sql = "SELECT COUNT(DISTINCT thread) AS n FROM python.thread WHERE state = 'started'"
    wait_for(lambda: recording.query(sql).to_pylist()[0]["n"] > threads * 0.99)


def test_no_stack_that_never_existed(root) -> None:
    """A short run of `make stress`, which allows none; here the machine may be busy with anything."""
    session = stress.run(3, "100us")
    found = stress.list_stacks(session)
    samples = sum(count for _frames, count in found)
    faults = oracle.find_faults(found)
    assert samples > 1000
    assert sum(faults.values()) <= samples / 50_000, faults


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here")
def test_a_reading_that_is_interrupted_makes_no_stack_that_never_existed(root) -> None:
    found = stress.list_stacks(stress.run_interrupted(3))
    assert sum(count for _frames, count in found) > 1000
    assert oracle.find_faults(found) == {}


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here")
def test_a_new_deep_stack_is_believed_where_system_calls_are_slow(start, tmp_path) -> None:
    process = start(
        "import sonde, time\n"
        "sonde.start(collector=False, stack_every='1ms')\n"
        "print('ready', flush=True)\n"
        "def sink(n): return sink(n - 1) if n else rest()\n"
        "def rest(): time.sleep(1000)\n"
        "end = time.monotonic() + 0.3\n"
        "while time.monotonic() < end: sum(range(1000))\n"
        "sink(30)",
        LD_PRELOAD=str(native_tools.make_slow_reads(tmp_path)), SLOW_READS="steady",
    )  # fmt: skip
    session = find_sessions(str(process.pid), os.environ["SONDE_DIR"])[0]

    def find_names() -> set[str]:
        nodes = stack_table.read_nodes(session)
        return {nodes.frame(at).func for at in range(1, len(nodes))}

    wait_for(lambda: "rest" in find_names())


@pytest.mark.skipif(
    importlib.util.find_spec("greenlet") is None, reason="greenlet is not installed"
)
def test_greenlets_are_seen_with_their_own_stacks(run) -> None:
    done = run(
        "import greenlet, sonde, time\n"
        "folder = sonde.start(collector=False, stack_every='1ms')\n"
        "def work(name):\n"
        "    for _ in range(50):\n"
        "        end = time.monotonic() + 0.005\n"
        "        while time.monotonic() < end: pass\n"
        "        other[name].switch()\n"
        "def one(): work('one')\n"
        "def two(): work('two')\n"
        "a, b = greenlet.greenlet(one), greenlet.greenlet(two)\n"
        "other = {'one': b, 'two': a}\n"
        "a.switch()\n"
        "sonde.stop(); print(folder)"
    )
    nodes = stack_table.read_nodes(Session(done.stdout.strip()))
    callers = set()
    for place in range(len(nodes)):
        names = [nodes.frame(at).func for at in nodes.walk(place)]
        if nodes.samples[place] and names[0] == "work":
            callers.add(names[1])
    assert callers == {"one", "two"}


def test_a_fork_gives_no_warning_of_threads(run) -> None:
    done = run(
        "import os, sonde\n"
        "sonde.start(collector=False)\n"
        "for _ in range(5):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        if os.fork(): os.wait()\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    assert done.stderr == ""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python warns of threads from 3.12 on")
def test_nor_do_many_forks_of_which_some_come_while_a_thread_still_ends(run) -> None:
    # The kernel counts a thread for a moment longer than whoever joins it waits: one fork in 1,500.
    done = run(
        "import os, sonde\n"
        "sonde.start(collector=False)\n"
        "for _ in range(3000):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    assert done.stderr == ""


def test_short_threads_have_their_cpu_time(run) -> None:
    done = run(
        "import sonde, threading, time\n"
        "folder = sonde.start(collector=False, stack_every='1ms')\n"
        "used = 0\n"
        "def short():\n"
        "    global used\n"
        "    end = time.thread_time_ns() + 4_000_000\n"
        "    while time.thread_time_ns() < end: pass\n"
        "    used += time.thread_time_ns()\n"
        "for _ in range(200):\n"
        "    thread = threading.Thread(target=short); thread.start(); thread.join()\n"
        "sonde.stop(); print(folder, used)"
    )
    folder, used = done.stdout.split()
    row = ask(folder, "SELECT SUM(cpu_ns)::BIGINT AS c FROM python.stack_sample JOIN python.frame "
              "USING (stack) WHERE func = 'short'")[0]  # fmt: skip
    assert 0.5 * int(used) < row["c"] < 1.05 * int(used)


def test_the_sampler_does_not_wait_for_the_thread_that_it_looks_at() -> None:
    release = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
    if release < (6, 12) or os.uname().machine != "x86_64":
        pytest.skip("the kernel knows no slices, or its call has another number here")
    sonde.start(collector=False)
    rules, libc = ctypes.create_string_buffer(48), ctypes.CDLL(None)

    def read_slices() -> list[int]:
        found = []
        for task in Path("/proc/self/task").glob("*/comm"):
            if task.read_text().strip() == "sonde":
                assert libc.syscall(315, int(task.parent.name), rules, 48, 0) == 0
                found.append(struct.unpack_from("Q", rules, 24)[0])
        return found

    wait_for(lambda: read_slices() == [100_000])  # the thread asks for it when it begins to run


C_CALLS = """
import array, hashlib, re, tempfile, zlib

class Cells(array.array):
    pass

class Seen:
    def __init__(self):
        self.items = list(range(9000))
        self.many = [None] * 1_000_000

    def has(self, item):
        return item in self.items

def match(pattern):
    return pattern.match("a" * 17 + "b")

def pack(data):
    return len(str(zlib.compress(data)))

def digest(data):
    return len(str(hashlib.sha256(data)))  # the function's own name is openssl_sha256

def find(number, numbers):
    return number in numbers

def sleep():
    time.sleep(0.02)

def lengthen(text, piece):
    return text + piece

def join(cells, more):
    return cells + more  # as an array does, of which their class is made

def cut(seen):
    return seen.items[1:]  # who gets it frees it: that takes as long

def shorten(seen):
    del seen.many[0]

def leave(data):
    with tempfile.TemporaryFile("wb", 1 << 23) as file:
        file.write(data)  # into a buffer, which is written when the block ends

def choose(pattern, is_long):
    return pattern.match("a" * 17 + "b" if is_long else "c")

def fail():
    try:
        raise ValueError
    except ValueError:
        return 0

def merge(known):
    return {**known, "more": 1}

def wait_for(flags):
    while not flags["ready"]:
        pass

def spin_on(numbers):
    total = 0
    for number in numbers:
        total += number * number
    return total

def work(until):
    pattern, seen, numbers, data = re.compile("^(a+)+$"), Seen(), range(20000), bytes(range(256)) * 400
    listed, text, known = list(numbers), "a" * 3_000_000, dict.fromkeys(numbers)
    flags, cells = {"ready": False}, Cells("q", range(300_000))
    until += time.thread_time() - time.monotonic()  # others may have the processors
    while time.thread_time() < until:
        match(pattern), pack(data), digest(data * 20), spin_on(numbers), sleep(), choose(pattern, True)
        flags["ready"] = False
        threading.Timer(0.05, flags.__setitem__, ("ready", True)).start()
        wait_for(flags)
        for _ in range(5):
            [shorten(seen) for _ in range(10)], leave(data * 40), merge(known)
            lengthen(text, "b"), [join(cells, cells) for _ in range(20)], [cut(seen) for _ in range(200)], [fail() for _ in range(5000)]
        for number in range(8900, 9000):
            seen.has(number), find(15000, listed)
"""


USUAL = {
    "match": "re.Pattern.match",
    "pack": "zlib.compress",
    "digest": "_hashlib.openssl_sha256",
    "has": "list.__contains__",
    "find": "list.__contains__",
    "sleep": "time.sleep",
    "choose": "re.Pattern.match",  # although an argument has two branches
    "lengthen": "str.__add__",
    "join": "array.array.__add__",
    "cut": "list.__getitem__",
    "shorten": "list.__delitem__",
    "merge": "{**}",
    "wait_for": "while",  # it ends only when another thread lets it
}


def count_calls(folder: str) -> dict[str, dict[str | None, int]]:
    sql = (
        "SELECT func, call, COUNT(*) AS n FROM python.stack_sample JOIN python.frame USING (stack) "
        "WHERE depth = 0 GROUP BY ALL"
    )
    calls: dict[str, dict[str | None, int]] = {}
    for row in sonde.open(folder).query(sql).to_pylist():
        calls.setdefault(row["func"].rpartition(".")[2], {})[row["call"]] = row["n"]
    return calls


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the core knows no C calls on 3.10")
def test_a_sample_names_the_c_function_that_its_line_calls(sample, tmp_path):
    for _ in range(5):  # a few samples are no law: on a busy machine it takes more of them
        sample(C_CALLS, 3.0)
        calls = count_calls(str(tmp_path))
        usual = {func: max(found, key=found.__getitem__) for func, found in calls.items()}
        is_known = {"leave", "fail"} <= calls.keys() and "raise" in calls["fail"]
        if is_known and USUAL.items() <= usual.items():
            break
    assert {func: usual.get(func) for func in USUAL} == USUAL
    assert any((call or "").endswith(".__exit__") for call in calls["leave"])
    assert calls["fail"]["raise"] > 0
    assert set(calls["spin_on"]) == {None}  # it calls nothing


CYTHON_CALLS = """
import time
import numpy as np

def pick(shares):
    return np.random.choice(len(shares), 64, p=shares)  # a method that is bound to an object

def draw(generator, shares):
    return generator.choice(len(shares), 64, p=shares)

def work(until):
    shares, generator = np.full(200_000, 1 / 200_000), np.random.default_rng(1)
    until += time.thread_time() - time.monotonic()
    while time.thread_time() < until:
        pick(shares), draw(generator, shares)
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the core knows no C calls on 3.10")
def test_a_sample_names_a_function_that_cython_has_made(sample, tmp_path):
    pytest.importorskip("numpy")
    sample(CYTHON_CALLS, 1.0)
    sql = (
        "SELECT func, MODE(call) AS call FROM python.stack_sample JOIN python.frame USING (stack) "
        "WHERE depth = 0 AND func IN ('pick', 'draw') GROUP BY ALL"
    )
    rows = sonde.open(str(tmp_path)).query(sql).to_pylist()
    assert {row["func"]: row["call"] for row in rows} == {
        "pick": "numpy.random.choice",
        "draw": "numpy.random._generator.choice",
    }
