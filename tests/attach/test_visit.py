"""Attach to programs that know nothing of it, detach, and find them as they were."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import TIMEOUT_S, wait_for
from sonde import _core, environ
from sonde.attach import preflight, visit
from sonde.errors import NotAnswering
from sonde.session import Session, list_sessions, stack_table, steering
from stress import attach as stress_attach

QUIET = {"collector": "off"}
HAS_GIL = not sysconfig.get_config_var("Py_GIL_DISABLED")
needs_gil = pytest.mark.skipif(not HAS_GIL, reason="this Python is built without a GIL")

WAITING = {
    "sleep": "while True: time.sleep(100)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "join": "one = threading.Thread(target=time.sleep, args=(100,)); one.start(); one.join()",
    "read": "ends = os.pipe(); os.read(ends[0], 1)",
    "poll": "import select; ends = os.pipe(); p = select.poll(); p.register(ends[0], 1); p.poll()",
    "epoll": "import select; select.epoll().poll()",
    "select": "import select; select.select([], [], [], 100)",
    "accept": "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()",
    "child": "import subprocess; subprocess.run(['sleep', '20'], stdout=-3, stderr=-3)",
    "asyncio": "import asyncio; asyncio.run(asyncio.sleep(100))",
    "busy": "while True: pass",
    "native": "import hashlib\nwhile True: hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**6)",
    "many": (
        "for _ in range(200): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()"
        "\nwhile True: sum(range(1000))"
    ),
}


def make_program(body: str) -> str:
    return f"import os, sys, threading, time\nprint('ready', flush=True)\n{body}\n"


@pytest.fixture
def load(tmp_path: Path):
    """A program of stress_attach.py; killed if the test does not end it."""
    if not HAS_GIL and sys.version_info < (3, 14):
        pytest.skip("3.13t gives way forty times for each import: minutes under load")
    made: list[stress_attach.Target] = []

    def load(name: str, python: str = sys.executable) -> stress_attach.Target:
        made.append(stress_attach.Target(name, str(tmp_path), python))
        return made[-1]

    yield load
    for target in made:
        target.process.kill()
        target.process.communicate()


def find_main(recording: Session) -> stack_table.ThreadStack | None:
    steering.sample_now(recording, 1)
    threads = {one.thread: one for one in stack_table.read_newest(recording)}
    return threads.get(recording.pid)


@pytest.mark.parametrize("what", WAITING)
def test_a_program_is_recorded_whatever_it_is_doing(start, what: str) -> None:
    process = start(make_program(WAITING[what]))
    recording = visit.attach(process.pid, QUIET, TIMEOUT_S)
    main = wait_for(lambda: find_main(recording))
    assert main.frames[-1].func == "<module>"
    assert main.frames[-1].file.endswith("program0.py")
    visit.detach(recording, TIMEOUT_S)
    assert recording.find_state() == "ended"
    assert process.poll() is None


@pytest.mark.parametrize("name", ["malloc", "gc", "fork", "threads", "calls"])
def test_attach_and_detach_many_times_under_load_change_no_result(load, name: str) -> None:
    target = load(name)
    stress_attach.run_cycles(target, 4)
    assert target.finish() > 0


def test_a_tool_that_is_killed_leaves_the_program_whole(load) -> None:
    target = load("malloc")
    stress_attach.kill_tools(target, 10)
    assert target.finish() > 0


def test_a_thread_finds_its_way_back_when_nobody_waits_for_it(load) -> None:
    """The deadline passes inside the call: the tool lets go, and the kernel brings it home."""
    target, left = load("asyncio"), 0
    plan = preflight.check(target.pid, environ.find_root())
    for tried in itertools.count():
        if tried >= 60 and (left or tried >= 10_000):
            break
        deadline_ns = _core.clock_ns() + random.randrange(400_000)
        try:
            _core.visit(
                target.pid,
                target.pid,
                plan.text,
                0,
                plan.restorer,
                plan.calls,
                b"pass",
                deadline_ns,
            )
        except OSError as error:
            assert error.errno == errno.ETIMEDOUT
            left += 1
    assert left
    assert target.finish() > 0


@needs_gil
def test_a_held_gil_is_waited_for_and_then_given_up(start) -> None:
    process = start(
        make_program("import ctypes\nctypes.PyDLL(None).sleep(4)\nprint('free')\ntime.sleep(100)")
    )
    with pytest.raises(NotAnswering, match="GIL"):
        visit.attach(process.pid, QUIET, 0.5)
    assert process.stdout.readline() == "free\n"
    assert not list(list_sessions(environ.find_root()))
    recording = visit.attach(process.pid, QUIET, TIMEOUT_S)
    assert wait_for(lambda: find_main(recording))
    visit.detach(recording, TIMEOUT_S)


def test_it_is_known_whether_a_python_is_built_to_run_without_a_gil(start, root: Path) -> None:
    process = start(make_program("time.sleep(100)"))
    assert visit.find_way(process.pid, str(root)).is_free is not HAS_GIL


@needs_gil
def test_a_python_that_has_no_gil_is_not_said_to_hold_it(start, root: Path) -> None:
    """The program does have one, and holds it: so nothing answers."""
    process = start(make_program("import ctypes\nctypes.PyDLL(None).sleep(100)"))
    plan = replace(visit.find_way(process.pid, str(root)), is_free=True)
    root.mkdir(exist_ok=True)
    with pytest.raises(NotAnswering, match="has no GIL"):
        visit._send(plan, str(root), 0.5, {"action": "start", "settings": QUIET})


@pytest.mark.parametrize("call", ["nanosleep", "clock_nanosleep", "poll"])
def test_a_sleep_is_not_prolonged(start, call: str) -> None:
    """Begun anew it would last two seconds from the attach on."""
    calls = {
        "nanosleep": "libc.usleep(2000000)",
        "clock_nanosleep": "time.sleep(2)",
        "poll": "import select; select.poll().poll(2000)",
    }
    process = start(
        f"import ctypes, time\nlibc = ctypes.CDLL(None)\nprint('ready', flush=True)\n{calls[call]}\n"
        "print(time.monotonic())\ntime.sleep(100)"
    )
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() > begin + 1)
    asked = time.monotonic()
    visit.attach(process.pid, QUIET, TIMEOUT_S)
    ended = float(process.stdout.readline())
    assert begin + 1.9 < ended < asked + 2


def test_every_signal_during_attach_and_detach_is_heard(start) -> None:
    process = start(
        "import signal\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('heard', flush=True))\n"
        "print('ready', flush=True)\n"
        "import time\nwhile True: time.sleep(0.05)\n"
    )
    over, heard = threading.Event(), []

    def send() -> None:
        while not over.is_set():
            process.send_signal(signal.SIGUSR2)
            ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S / 4)
            heard.append(process.stdout.readline() if ready else "lost")
            if not ready:
                return

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(15):
            visit.detach(visit.attach(process.pid, QUIET, TIMEOUT_S), TIMEOUT_S)
    finally:
        over.set()
        sender.join()
    assert set(heard) == {"heard\n"}


def test_a_program_that_supervises_its_children_takes_no_stop_for_an_end(start) -> None:
    """In a process that traces, every wait for a child would report stops."""
    process = start("print('ready', flush=True)\nimport time\nwhile True: time.sleep(0.001)\n")
    over, ends = threading.Event(), []

    def supervise() -> None:
        while not over.is_set() and not ends:
            code = process.poll()
            ends.extend([] if code is None else [code])

    supervisor, signals = threading.Thread(target=supervise), []
    before = signal.signal(signal.SIGCHLD, lambda *_: signals.append("a child"))
    supervisor.start()
    try:
        for _ in range(5):
            visit.detach(visit.attach(process.pid, QUIET, TIMEOUT_S / 4), TIMEOUT_S / 4)
        for _ in range(20):
            assert _core.look_at(process.pid, process.pid, len) > 0
    finally:
        over.set()
        supervisor.join()
        signal.signal(signal.SIGCHLD, before)
        os.kill(process.pid, signal.SIGKILL)  # whatever the supervisor believes
    assert (ends, signals) == ([], [])


def test_a_thread_that_only_waits_for_a_processor_is_waited_for(start) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
    except PermissionError:
        pytest.skip("only root may crowd out another process")
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1)
    share = "import os, time\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\n"
    idle = start(
        f"{share}os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "print('ready', flush=True)\nwhile True: pass\n"
    )
    start(
        f"{share}os.setpriority(os.PRIO_PROCESS, 0, -20)\nprint('ready', flush=True)\n"
        "begin = time.monotonic()\nwhile time.monotonic() < begin + 3: pass\n"
    )
    assert _core.look_at(idle.pid, idle.pid, len)


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 3), (signal.SIGTERM, -15)])
def test_a_signal_that_ends_the_program_ends_it_as_before(start, number: int, status: int) -> None:
    process = start(
        "import sys, time\nprint('ready', flush=True)\n"
        "try:\n    while True: time.sleep(100)\nexcept KeyboardInterrupt:\n    sys.exit(3)\n"
    )
    visit.attach(process.pid, QUIET, TIMEOUT_S)
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == status
    assert process.stderr.read() == ""


INVENTORY = """
import gc, json, os, signal, sys, threading
def find_file(fd):
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return path if os.path.exists(f"/proc/self/fd/{fd}") else None
    except OSError:
        return None  # closed meanwhile: by our thread, or the list's own
def look():
    return {
        "threads": sorted(t.name for t in threading.enumerate()),
        "native": len(os.listdir("/proc/self/task")),
        "files": sorted(filter(None, map(find_file, os.listdir("/proc/self/fd")))),
        "code": [line for line in open("/proc/self/maps") if " r-xp " in line and "/" not in line
                 and "[v" not in line],
        # 32 and 33 are the C library's own; it takes them when the first thread is made.
        "signals": [int(line.split()[1], 16) & ~(3 << 31) for line in open("/proc/self/status")
                    if line.startswith(("SigCgt", "SigIgn", "SigBlk"))],
        "handlers": [str(signal.getsignal(n)) for n in range(1, signal.NSIG)],
        "environ": dict(os.environ), "path": list(sys.path), "main": sorted(globals()),
        "gc": len(gc.callbacks),
        "switch": sys.getswitchinterval(), "profile": str(sys.getprofile()),
        "tools": [sys.monitoring.get_tool(n) for n in range(6)] if sys.version_info >= (3, 12) else 0,
    }
line = True
look()
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(look()), flush=True)
"""


def start_inventory(python: str, **env: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SONDE")}
    process = subprocess.Popen(
        [python, "-u", "-c", INVENTORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**kept, **env},
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


def ask_inventory(process: subprocess.Popen[str]) -> dict[str, object]:
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize("has_sonde", [True, False])
def test_after_detach_nothing_of_ours_is_left(has_sonde: bool) -> None:
    # The interpreter that the virtual environment was made from has no sonde.
    python = sys.executable if has_sonde else sys._base_executable
    process = start_inventory(python)
    try:
        before = ask_inventory(process)
        recording = visit.attach(
            process.pid, {**QUIET, "source.call": "on", "snapshot.signal": "USR1"}, TIMEOUT_S
        )
        during = ask_inventory(process)
        assert during["native"] > before["native"] and during["signals"] != before["signals"]
        visit.detach(recording, TIMEOUT_S)
        wait_for(lambda: ask_inventory(process)["native"] == before["native"])
        assert ask_inventory(process) == before
    finally:
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
        process.stdout.close()


def test_a_main_thread_that_takes_the_gil_back_at_once_is_held(start) -> None:
    process = start(make_program("while True: os.path.exists('/')"))
    begin = time.monotonic()
    recording = visit.attach(process.pid, QUIET, TIMEOUT_S)
    took_s = time.monotonic() - begin
    visit.detach(recording, TIMEOUT_S)
    assert process.poll() is None
    assert took_s < TIMEOUT_S / 2


@pytest.mark.parametrize("name", ["float", "stat"])
def test_threads_that_take_the_gil_back_at_once_are_held(load, name: str) -> None:
    """The main thread waits in join(), so there is nobody who could be asked."""
    target = load(name)
    stress_attach.run_cycles(target, 2)
    assert target.finish() > 0


def test_a_held_thread_goes_on_and_is_traced_by_nobody(load) -> None:
    target = load("stat")
    threads = preflight.ProcessFiles(target.pid).list_threads()
    # The main thread waits in join() all the while, and so the visit is not over before its time.
    _core.hold(target.pid, target.pid, _core.clock_ns() + 100_000_000)
    for tid in threads:
        assert "TracerPid:\t0\n" in Path(f"/proc/{target.pid}/task/{tid}/status").read_text()
    assert target.finish() > 0


def test_a_tool_that_is_killed_while_it_holds_threads_leaves_the_program_whole(load) -> None:
    target = load("stat")
    code = "import sys; from sonde import _core; _core.hold(*map(int, sys.argv[1:]), 2**62)"
    for _ in range(10):
        tool = subprocess.Popen([sys.executable, "-c", code, str(target.pid), str(target.pid)])
        assert stress_attach.wait_traced(target.pid, tool)
        time.sleep(random.random() * 0.02)  # any moment will do
        tool.kill()
        tool.wait()
    assert target.finish() > 0


def start_beside_a_sleeper(start, body: str) -> tuple[subprocess.Popen[str], int]:
    """A program whose main thread is busy, and its other thread, which only waits."""
    process = start(
        "import os, signal, threading, time\n"
        "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
        f"{body}\nprint('ready', flush=True)\nwhile True: os.stat('/')\n"
    )
    sleeper = preflight.ProcessFiles(process.pid).list_threads()[0]
    assert sleeper != process.pid
    return process, sleeper


def test_the_end_of_a_held_child_is_left_to_its_parent_to_see(start) -> None:
    process, sleeper = start_beside_a_sleeper(start, "signal.alarm(1)")
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        _core.hold(process.pid, sleeper, _core.clock_ns() + 10_000_000)
    assert process.returncode == -signal.SIGALRM


def test_a_parent_that_asks_after_its_held_child_does_not_take_its_stops(start) -> None:
    """To a parent that traces, every wait tells of stops, too; one taken away is never answered."""
    process, sleeper = start_beside_a_sleeper(start, "")
    over, told = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            told.append(process.poll())

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(20):
            _core.hold(process.pid, sleeper, _core.clock_ns() + 10_000_000)
    finally:
        over.set()
        asker.join()
    assert set(told) == {None}


def test_an_answer_that_cannot_be_written_is_told_as_such(start) -> None:
    process = start(
        "import resource, time\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "print('ready', flush=True)\ntime.sleep(100)\n"
    )
    with pytest.raises(preflight.CannotAttach, match="could not leave its answer"):
        visit.attach(process.pid, QUIET, TIMEOUT_S)
    assert process.poll() is None
    assert not list(list_sessions(environ.find_root()))


def test_a_second_attach_names_the_recording_that_runs(start) -> None:
    process = start(make_program("time.sleep(100)"))
    first = visit.attach(process.pid, QUIET, TIMEOUT_S)
    with pytest.raises(preflight.AlreadyRecorded, match=first.id):
        visit.attach(process.pid, QUIET, TIMEOUT_S)
    visit.detach(first, TIMEOUT_S)
    second = visit.attach(process.pid, QUIET, TIMEOUT_S)
    assert second.folder != first.folder
    assert second.is_alive() and not first.is_alive()


def test_a_recording_elsewhere_is_found_from_inside(start, tmp_path, monkeypatch) -> None:
    process = start(
        "import sonde, time\nsonde.start(collector='off')\nprint('ready')\ntime.sleep(100)",
        SONDE_DIR=str(tmp_path / "elsewhere"),
    )
    with pytest.raises(preflight.AlreadyRecorded, match="elsewhere"):
        visit.attach(process.pid, QUIET, TIMEOUT_S)


def test_what_is_wrong_in_its_environment_is_not_written_to_its_stderr(start) -> None:
    process = start(make_program("time.sleep(100)"), SONDE_STAK_EVERY="1s", SONDE_STACK_EVERY="x")
    visit.detach(visit.attach(process.pid, QUIET, TIMEOUT_S), TIMEOUT_S)
    process.kill()
    assert process.stderr.read() == ""


def test_a_process_that_ends_meanwhile_is_told_as_such(start) -> None:
    hold = "import ctypes, signal; signal.alarm(6); ctypes.PyDLL(None).sleep(60)"
    process = start(make_program(hold))
    with pytest.raises(NotAnswering, match="has ended"):
        visit.attach(process.pid, QUIET, TIMEOUT_S)


def test_a_process_whose_visitor_ends_first_is_told_as_ended(
    start, tmp_path: Path, monkeypatch
) -> None:
    # Threads of a process that is killed end one after the other, the visitor perhaps before all others.
    process = start(make_program("time.sleep(0.3); os._exit(0)"))
    folder = tmp_path / "answer"
    folder.mkdir()
    monkeypatch.setattr(visit, "_ENDING_S", TIMEOUT_S)
    no_thread, deadline_ns = 2**22 + 1, time.monotonic_ns() + 60 * 10**9
    with pytest.raises(NotAnswering, match="has ended"):
        visit._wait(process.pid, no_thread, str(folder), deadline_ns, "")


def test_detach_does_not_need_the_main_thread(start) -> None:
    process = start(make_program("import ctypes; ctypes.CDLL(None).sleep(100)"))
    recording = visit.attach(process.pid, QUIET, TIMEOUT_S)
    visit.detach(process.pid, TIMEOUT_S)
    assert recording.find_state() == "ended"


def test_an_attached_process_is_steered_like_any_other(start) -> None:
    process = start(make_program("while True: time.sleep(0.01)"))
    recording = visit.attach(process.pid, {**QUIET, "stack.every": "20ms"}, TIMEOUT_S)
    assert recording.read_config()["stack.every"] == 0.02
    values = steering.configure(recording, {"source.gc": "off", "stack.every": "5ms"}, TIMEOUT_S)
    assert (values["source.gc"], values["stack.every"]) == (False, 0.005)
    steering.pause(recording)
    steering.resume(recording)
    steering.stop(recording, TIMEOUT_S)
    assert recording.find_state() == "ended"


def test_children_of_an_attached_process_are_recorded(start, root: Path) -> None:
    process = start(
        make_program(
            "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
            "if os.fork() == 0:\n    print(os.getpid(), flush=True)\n"
            "while True: time.sleep(0.01)"
        ),
        str(go := root.parent / "go"),
    )
    visit.attach(process.pid, QUIET, TIMEOUT_S)
    go.touch()
    child = int(process.stdout.readline())
    try:
        assert wait_for(lambda: [s for s in list_sessions(str(root)) if s.pid == child])
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_session_goes_where_the_tool_looks_for_it(start, root: Path, tmp_path: Path) -> None:
    process = start(make_program("time.sleep(100)"), SONDE_DIR=str(tmp_path / "its own"))
    recording = visit.attach(process.pid, QUIET, TIMEOUT_S)
    assert Path(recording.folder).parent == root


def test_what_is_wrong_inside_is_told_and_not_printed(start, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sonde.py").write_text("mine = True")
    process = start(make_program("time.sleep(100)"), PYTHONPATH=str(tmp_path / "theirs"))
    with pytest.raises(preflight.CannotAttach, match="another module called sonde"):
        visit.attach(process.pid, QUIET, TIMEOUT_S)
    process.kill()
    assert process.communicate()[1] == ""


# ---- the commands ------------------------------------------------------------------------------


def test_the_command_attaches_and_says_what_can_be_done_next(start, sonde_cli) -> None:
    process = start(make_program("time.sleep(100)"))
    done = sonde_cli("attach", process.pid, "--set", "collector=off")
    assert (done.returncode, Session(done.stdout.strip()).pid) == (0, process.pid)
    assert f"sonde stop {process.pid}" in done.stderr
    assert sonde_cli("stop", process.pid).returncode == 0
    assert not Session(done.stdout.strip()).is_alive()


def test_check_touches_nothing(start, sonde_cli, root: Path) -> None:
    process = start(make_program("time.sleep(100)"))
    before = Path(f"/proc/{process.pid}/maps").read_text()
    done = sonde_cli("attach", "--check", process.pid)
    assert done.returncode == 0 and "can be attached to" in done.stdout
    assert Path(f"/proc/{process.pid}/maps").read_text() == before
    assert not list(list_sessions(str(root)))


def test_several_processes_are_attached_to_and_one_failure_is_told(start, sonde_cli) -> None:
    one, other = (start(make_program("time.sleep(100)")) for _ in range(2))
    done = sonde_cli("attach", one.pid, 2**22 + 1, other.pid, "--set", "collector=off")
    assert done.returncode == 3
    assert {Session(line).pid for line in done.stdout.split()} == {one.pid, other.pid}
    assert f"no process {2**22 + 1}" in done.stderr


def test_a_process_that_is_not_recorded_is_told_how_to_be(start, sonde_cli) -> None:
    process = start(make_program("time.sleep(100)"))
    done = sonde_cli("config", process.pid)
    assert done.returncode == 3 and f"`sonde attach {process.pid}`" in done.stderr


def test_a_wrong_setting_is_refused_before_anything_is_touched(start, sonde_cli) -> None:
    process = start(make_program("time.sleep(100)"))
    assert sonde_cli("attach", process.pid, "--set", "nonsense=1").returncode == 2
    assert sonde_cli("attach", process.pid, "--set", "collector").returncode == 2
