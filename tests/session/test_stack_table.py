"""`sonde stacks`: what every thread is doing now, whatever the process is stuck in."""

from __future__ import annotations

import json
import time

from conftest import wait_for
from sonde import cli
from sonde.session import stack_table
from sonde.session.records import Locals
from support.needs import need_gil

HANGING = """
import threading, time, asyncio, sonde
sonde.start(collector=False)
class Odd:
    def __repr__(self): raise SystemExit("nobody may call this")
def hold(lock):
    secret, odd, many = 42, Odd(), list(range(1000))
    with lock: pass
lock = threading.Lock(); lock.acquire()
threading.Thread(target=hold, args=(lock,), name="waiter", daemon=True).start()
async def inner(): await asyncio.sleep(1000)
async def outer(): await inner()
async def main(): await asyncio.create_task(outer(), name="job")
threading.Thread(target=lambda: asyncio.run(main()), name="loop", daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
{end}
"""
DEADLOCK = "def deadlock():\n    lock.acquire()\ndeadlock()"
FOREIGN = """
import ctypes
c = ctypes.CDLL(None)
@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def foreign(_):
    while True: time.sleep(0.1)
c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, foreign, None)
time.sleep(1000)
"""
HELD = "def held():\n    sum(range(10**11))\nheld()"


def read(sonde_cli, process, *more: str) -> dict:
    done = sonde_cli("stacks", process.pid, "--format", "json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]


def find(found: dict, name: str) -> dict:
    return next(thread for thread in found["threads"] if thread["name"] == name)


def test_a_loop_that_sleeps_again_and_again_is_not_said_to_wait_for_long(start, sonde_cli) -> None:
    process = start(HANGING.format(end="while True: time.sleep(0.01)"))
    shown: dict[str, str] = {}

    def ask() -> bool:
        lines = sonde_cli("stacks", process.pid).stdout.splitlines()
        shown.update((line.split('"')[1], line) for line in lines if line.startswith("Thread"))
        return "at this line for" in shown["MainThread"]

    wait_for(ask)
    assert "idle for" in shown["waiter"], shown


def test_a_deadlocked_program_shows_every_thread(start, sonde_cli) -> None:
    process = start(HANGING.format(end=DEADLOCK))
    # Names are asked for a moment after a thread is first seen.
    wait_for(lambda: {t["name"] for t in read(sonde_cli, process)["threads"]} >= {"waiter", "loop"})
    found = read(sonde_cli, process)
    assert [frame["func"] for frame in find(found, "MainThread")["frames"]] == [
        "deadlock",
        "<module>",
    ]
    waiter = find(found, "waiter")
    assert waiter["frames"][0]["func"] == "hold" and waiter["idle"] and not waiter["gil"]
    assert not found["notes"]


def test_a_thread_in_one_long_c_call_that_holds_the_gil_is_shown(start, sonde_cli) -> None:
    need_gil()
    process = start(HANGING.format(end=HELD))
    time.sleep(0.1)
    main = find(read(sonde_cli, process), "MainThread")
    assert main["frames"][0]["func"] == "held" and main["gil"] and not main["idle"]


def test_locals_and_tasks_say_so_if_the_gil_is_not_to_be_had(start, sonde_cli) -> None:
    need_gil()
    process = start(HANGING.format(end=HELD))
    found = read(sonde_cli, process, "--locals", "--tasks", "--timeout", "0.3")
    assert "the GIL was not free within 0.3 s" in found["notes"][0]
    assert find(found, "MainThread")["frames"][0]["func"] == "held"


def test_locals_are_shown_without_running_code_of_the_program(start, sonde_cli) -> None:
    need_gil()
    process = start(HANGING.format(end=DEADLOCK))
    found = read(sonde_cli, process, "--locals", "--timeout", "20")
    seen = find(found, "waiter")["frames"][0]["locals"]
    assert seen["secret"] == "42"
    assert seen["odd"].startswith("<__main__.Odd at 0x")
    assert seen["many"] == "[0, 1, 2, 3, 4, 5, 6, 7, … 992 more]"
    assert process.poll() is None


MOVING = """
import itertools, sonde
sonde.start(collector=False)
def burn(n):
    total = 0
    for i in range(n):
        total += i * i
def dive(left, word):
    if left:
        return dive(left - 1, word)
    return burn(50)
print("ready", flush=True)
for turn in itertools.count():
    dive(10 + turn % 7, "deep")
"""


def test_locals_belong_to_the_stack_that_is_shown_while_the_program_moves(
    start, sonde_cli, monkeypatch, capsys
) -> None:
    need_gil()
    process = start(MOVING)
    for _ in range(3):
        # On a busy machine the stack may have changed each time that it was read, or the sampler
        # has not answered yet.
        found = wait_for(
            lambda: (
                (seen := read(sonde_cli, process, "--locals", "--timeout", "20"))["threads"]
                and not seen["notes"]
                and seen
            )
        )
        frames = find(found, "MainThread")["frames"]
        dives = [frame["locals"] for frame in frames if frame["func"] == "dive"]
        assert frames[-1]["func"] == "<module>" and len(dives) == len(frames) - 1 - (
            frames[0]["func"] == "burn"
        )
        # Each call passes one less on: these were the variables of this very stack.
        least = int(dives[0]["left"]) if dives else 0
        assert [one["left"] for one in dives] == [str(least + at) for at in range(len(dives))]
    # On a crowded machine the main thread is looked at before the sampler has seen it.
    monkeypatch.setattr(stack_table, "read_newest", lambda _: [])
    monkeypatch.setattr(stack_table, "read_threads", lambda _: ({}, {}))
    assert cli.main(["stacks", str(process.pid), "--locals", "--timeout=20", "--format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert find(found, "MainThread")["frames"][-1]["func"] == "<module>"


def test_a_thread_without_locals_is_named(start, sonde_cli) -> None:
    need_gil()
    process = start(HANGING.format(end=FOREIGN))
    found = wait_for(
        lambda: (seen := read(sonde_cli, process, "--locals", "--timeout", "20"))["notes"] and seen
    )
    (note,) = found["notes"]
    (alone,) = (one for one in found["threads"] if one["frames"][0]["func"] == "foreign")
    assert str(alone["thread"]) in note and "no locals" in note


def test_old_locals_are_not_shown_as_new_ones(start, sonde_cli, root) -> None:
    need_gil()
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nprint(flush=True)\n"
    process = start(HANGING.format(end=full + DEADLOCK))
    process.stdout.readline()  # now no file can grow
    (session,) = (one for one in root.glob("*-*") if one.is_dir())
    Locals(number=1, t_ns=1, threads={str(process.pid): []}).write(str(session / "locals.json"))
    found = read(sonde_cli, process, "--locals", "--timeout", "20")
    assert {frame["locals"] for one in found["threads"] for frame in one["frames"]} == {None}
    assert any("could not be written" in note for note in found["notes"])


def test_waiting_tasks_are_shown_with_their_chain_of_awaits(start, sonde_cli) -> None:
    need_gil()
    process = start(HANGING.format(end=DEADLOCK))
    found = read(sonde_cli, process, "--tasks", "--timeout", "20")
    tasks = {task[0]["name"]: task for task in found["tasks"]}
    assert [row["func"] for row in tasks["job"]] == ["sleep", "inner", "outer"]
    assert tasks["job"][0]["state"] == "waiting" and tasks["job"][0]["waits_for"]


def test_backtrace_is_the_same_as_sql(start, sonde_cli) -> None:
    import sonde

    process = start(HANGING.format(end=DEADLOCK))
    found = read(sonde_cli, process, "--locals", "--timeout", "20")
    rows = sonde.open(process.pid).query(
        "SELECT func, lineno, locals FROM python.backtrace "
        "WHERE name = 'waiter' AND frame_type = 'Python' ORDER BY depth"
    ).to_pylist()  # fmt: skip
    waiter = find(found, "waiter")["frames"]
    assert [(row["func"], row["lineno"]) for row in rows] == [
        (f["func"], f["line"]) for f in waiter
    ]
    assert json.loads(rows[0]["locals"]) == waiter[0]["locals"]


def test_a_paused_recording_still_answers(start, sonde_cli) -> None:
    process = start(HANGING.format(end=DEADLOCK))
    assert sonde_cli("pause", process.pid).returncode == 0
    before = time.monotonic_ns()
    main = find(read(sonde_cli, process), "MainThread")
    assert main["t_ns"] >= before


def test_a_killed_process_shows_where_it_was(start, sonde_cli) -> None:
    process = start(HANGING.format(end=DEADLOCK))
    time.sleep(0.2)
    process.kill()
    process.wait()
    done = sonde_cli("stacks", process.pid)
    assert "This is where it was" in done.stdout and "deadlock" in done.stdout


def test_without_the_stack_source_it_says_what_to_do(start, sonde_cli) -> None:
    process = start(
        "import sonde, time; sonde.start(collector=False, source_stack=False)\n"
        "print('ready', flush=True); time.sleep(100)"
    )
    done = sonde_cli("stacks", process.pid)
    assert done.returncode == 1 and "source.stack=on" in done.stderr
    assert sonde_cli("config", process.pid, "source.stack=on").returncode in (0, 6)


def test_locals_run_no_hash_and_never_keep_the_program_from_ending(run) -> None:
    need_gil()
    done = run(
        "import os, subprocess, sys, threading, sonde\n"
        "sonde.start(collector=False)\n"
        "lock = threading.Lock()\n"
        "class Key:\n"
        "    def __hash__(self):\n"
        "        with lock: return 1\n"
        "def work():\n"
        "    table = {Key(): 1}\n"
        "    lock.acquire()\n"
        "    subprocess.run([sys.executable, '-m', 'sonde', 'stacks', '--locals', str(os.getpid())],\n"
        "                   env={**os.environ, 'SONDE': '0'}, check=True)\n"
        "work()"
    )
    assert "table = {<__main__.Key at 0x" in done.stdout


def test_locals_do_not_keep_objects_alive(run) -> None:
    need_gil()
    done = run(
        "import os, subprocess, sys, weakref, sonde\n"
        "sonde.start(collector=False)\n"
        "class Big: pass\n"
        "def work():\n"
        "    big = Big(); seen = weakref.ref(big)\n"
        "    inner = lambda: big\n"
        "    subprocess.run([sys.executable, '-m', 'sonde', 'stacks', '--locals', str(os.getpid())],\n"
        "                   env={**os.environ, 'SONDE': '0'}, check=True)\n"
        "    big = None\n"
        "    print('alive' if seen() else 'gone')\n"
        "work()"
    )
    assert "big = <__main__.Big at 0x" in done.stdout  # also without `threading`, and in a cell
    assert done.stdout.split()[-1] == "gone"


OWN_FRAME = """
import time, sonde
sonde.start(collector=False)
source = "def stop(): time.sleep(60)"
exec(compile(source, "/v/lib/python3.12/site-packages/sonde/job/sources/stack.py", "exec"))
def leave():
    stop()
print("ready", flush=True)
leave()
"""


def test_a_frame_of_ours_is_in_no_stack(start, sonde_cli) -> None:
    process = start(OWN_FRAME)
    wait_for(lambda: "leave (" in sonde_cli("stacks", process.pid).stdout)
    assert "sonde/job/sources" not in sonde_cli("stacks", process.pid).stdout
