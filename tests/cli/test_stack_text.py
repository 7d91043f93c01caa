"""How stacks are drawn: equal ones once, what they wait for, short paths."""

from __future__ import annotations

from pathlib import Path

from sonde.attach.native_names import shorten_name
from sonde.attach.native_text import is_ours
from sonde.cli._stack_text import Painter, StackText
from sonde.session.stack_table import StackFrame, ThreadStack

STANDARD = "/opt/py/lib/python3.12"
SECOND = 10**9
GET = [
    StackFrame("Condition.wait", f"{STANDARD}/threading.py", 355, 0),
    StackFrame("Queue.get", f"{STANDARD}/queue.py", 171, 0),
    StackFrame("worker", "/job/app/pool.py", 4, 0),
    StackFrame("Thread.run", f"{STANDARD}/threading.py", 1010, 0),
    StackFrame("Thread._bootstrap", f"{STANDARD}/threading.py", 1030, 0),
]


def make(thread: int, name: str | None, frames=GET, lasted_s: float = 5, **more) -> ThreadStack:
    one = ThreadStack(thread, name, 100 * SECOND)
    one.frames, one.idle, one.gil = frames, more.get("idle", True), more.get("gil", False)
    one.since_ns = 100 * SECOND - round(lasted_s * SECOND)
    return one


def draw(*threads: ThreadStack, variables=None, coloured=False) -> list[str]:
    text = StackText(Painter(coloured=coloured), "/job", 0)
    return list(text.draw_threads(threads, variables or {}))


def test_equal_threads_are_one_and_the_time_is_that_of_the_youngest() -> None:
    assert draw(*(make(n, f"w{n}", lasted_s=n) for n in range(3, 9))) == [
        "",
        '6 threads "w3", "w4", "w5", … "w8"  idle for 3.00 s: waits for an item from a queue',
        "    Condition.wait (threading.py:355)",
        "    Queue.get (queue.py:171)",
        "    worker (app/pool.py:4)",
    ]


def test_what_stands_above_a_stack_keeps_to_the_width_and_says_a_name_once() -> None:
    text = StackText(Painter(coloured=True), "/job", 0, width=40)
    threads = [make(n, "AnyIO worker thread", GET[:1]) for n in (1, 2)]
    assert list(text.draw_threads(threads, {}))[1:3] == [
        '\x1b[1m2 threads\x1b[0m "AnyIO worker thread"  idle',
        "  for 5.00 s: waits for a condition",
    ]


def test_of_a_stack_of_libraries_alone_the_innermost_frames_are_shown() -> None:
    site = "/v/lib/python3.12/site-packages"
    stack = [
        StackFrame(f"make.<locals>.step_{n}", f"{site}/fastapi/app.py", n, 0) for n in range(30)
    ]
    text = StackText(Painter(coloured=False), "/job", 0, all_frames=False)
    lines = list(text.draw_threads([make(1, None, stack)], {}))
    assert lines[2] == "    make.step_0 (fastapi/app.py:0)" and len(lines) == 2 + 8 + 1
    assert lines[-1] == "    called by 22 frames of fastapi (--all-frames)"
    assert len(draw(make(1, None, stack))) == 2 + 30


def test_how_a_server_calls_its_application_is_one_line_unless_it_is_asked_for() -> None:
    site = "/v/lib/python3.12/site-packages"
    server = [
        StackFrame(f"step_{n}", f"{site}/{name}/app.py", n, 0)
        for n, name in enumerate(("starlette", "starlette", "fastapi", "uvicorn", "click"))
    ]
    stack = [*GET[:3], *server, StackFrame("<module>", "/v/bin/uvicorn", 6, 0)]
    text = StackText(Painter(coloured=False), "/job", 0, all_frames=False)
    folded = list(text.draw_threads([make(1, "MainThread", stack)], {}))
    assert folded[2:] == [
        "    Condition.wait (threading.py:355)",
        "    Queue.get (queue.py:171)",
        "    worker (app/pool.py:4)",
        "    called by 6 frames of starlette, fastapi, uvicorn, click (--all-frames)",
    ]
    assert len(draw(make(1, "MainThread", stack))) == 2 + len(stack)
    # A few callers, and short stacks without code of the user's own, are told in full.
    for whole in (stack[:6], server):
        assert len(list(text.draw_threads([make(1, "a", whole)], {}))) == 2 + len(whole)


def test_what_only_runs_a_program_is_left_out_unless_it_is_all_there_is() -> None:
    launch = [
        StackFrame("_run_code", "<frozen runpy>", 88, 0),
        StackFrame("_run_module_as_main", "<frozen runpy>", 198, 0),
    ]
    spawned = [
        StackFrame("BaseProcess.run", f"{STANDARD}/multiprocessing/process.py", 108, 0),
        StackFrame("_main", f"{STANDARD}/multiprocessing/spawn.py", 135, 0),
        StackFrame("<module>", "<string>", 1, 0),
    ]
    own = StackFrame("main", "/job/app/__main__.py", 9, 0)
    text = StackText(Painter(coloured=False), "/job", 0, all_frames=False)
    for start, least in ((launch, 2), (spawned, 2)):
        lines = list(text.draw_threads([make(1, "MainThread", [own, *start])], {}))
        assert lines[2:] == ["    main (app/__main__.py:9)"]
        assert len(draw(make(1, "MainThread", [own, *start]))) == 3 + len(start)
        assert len(list(text.draw_threads([make(1, "MainThread", start)], {}))) == 2 + least


def test_a_forked_worker_is_shown_without_the_stack_of_its_parent() -> None:
    pool = f"{STANDARD}/multiprocessing"
    stack = [
        StackFrame("crunch", "/job/app/pool.py", 4, 0),
        StackFrame("worker", f"{pool}/pool.py", 125, 0),
        StackFrame("BaseProcess.run", f"{pool}/process.py", 108, 0),
        StackFrame("BaseProcess._bootstrap", f"{pool}/process.py", 314, 0),
        StackFrame("Popen._launch", f"{pool}/popen_fork.py", 71, 0),
        StackFrame("main", "/job/app/pool.py", 9, 0),
    ]
    text = StackText(Painter(coloured=False), "/job", 0, all_frames=False)
    lines = list(text.draw_threads([make(1, "MainThread", stack)], {}))
    assert lines[2:] == ["    crunch (app/pool.py:4)"]
    waiting = [StackFrame("SemLock.__enter__", f"{pool}/synchronize.py", 95, 0), *stack[1:]]
    lines = list(text.draw_threads([make(1, "MainThread", waiting)], {}))
    assert not any("main" in line for line in lines[2:])


def test_frames_of_sonde_between_those_of_the_program_are_not_shown() -> None:
    ours = StackFrame(
        "get_response", "/v/lib/python3.12/site-packages/sonde/job/sources/request.py", 8, 0
    )
    lines = draw(make(1, "a", [GET[2], ours, GET[2]]))
    assert lines[2:] == ["    worker (app/pool.py:4)"] * 2


def test_threads_that_differ_in_state_or_have_locals_are_told_apart() -> None:
    busy = make(1, "a", idle=False, gil=True, lasted_s=0.2)
    lines = draw(busy, make(2, "b"), make(3, None), variables={3: [{}, {}, {"x": "1"}, {}, {}]})
    assert [line for line in lines if line.startswith("Thread")] == [
        'Thread 1 "a"  running, holds the GIL',
        'Thread 2 "b"  idle for 5.00 s: waits for an item from a queue',
        "Thread 3  idle for 5.00 s: waits for an item from a queue",
    ]
    assert lines[-1] == "        x = 1"


def test_own_lines_are_quoted_if_the_file_is_still_the_one_that_ran(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text("def go():\n    pause()\n")
    later = file.stat().st_mtime_ns + 1
    one = make(1, "a", [StackFrame("go", str(file), 2, 1)])
    text = StackText(Painter(coloured=False), str(tmp_path), later)
    assert list(text.draw_threads([one], {}))[-1] == "    go (app.py:2)  pause()"
    text = StackText(Painter(coloured=False), str(tmp_path), later - SECOND)
    assert list(text.draw_threads([one], {}))[-1] == "    go (app.py:2)"


def test_names_cannot_steer_a_terminal() -> None:
    lines = draw(make(1, "\x1b[2J", [StackFrame("\x1b[2J", "/job/\x1b[2J.py", 1, 0)]))
    assert not any("\x1b" in line for line in lines)


def test_equal_tasks_are_one() -> None:
    def task(name: str) -> list[dict[str, object]]:
        whole = {"name": name, "state": "waiting", "waits_for": "_asyncio.FutureIter"}
        ours = ("call", "/v/lib/python3.12/site-packages/sonde/job/sources/request.py", 8)
        wait = ("Event.wait", f"{STANDARD}/asyncio/locks.py", 213)
        frames = [wait, ours, ("stuck", "/job/a.py", 7)]
        return [{**whole, "func": f, "file": file, "lineno": n} for f, file, n in frames]

    text = StackText(Painter(coloured=False), "/job", 0)
    assert list(text.draw_tasks([task("Task-10"), task("Task-2")])) == [
        "",
        "2 tasks Task-2, Task-10  waiting for an event",
        "    Event.wait (asyncio/locks.py:213)",
        "    stuck (a.py:7)",
    ]
    (first, *_) = [[{**row, "file": "/job/b.py"} for row in task("Task-1")]]
    assert list(text.draw_tasks([first]))[1] == "Task Task-1  waiting for a future"


# ---- native frames -----------------------------------------------------------------------------


def test_calls_of_the_interpreter_and_starts_of_threads_are_left_out() -> None:
    def c(name: str, library: str) -> StackFrame:
        return StackFrame(name, f"/lib/{library}", 0, 0, is_native=True)

    frames = [
        c("clock_nanosleep", "libc.so.6"), c("time_sleep", "libpython3.11.so.1.0"),
        c("cfunction_vectorcall_O", "libpython3.11.so.1.0"), StackFrame("step", "/job/a.py", 3, 1),
        c("_PyEval_Vector", "libpython3.11.so.1.0"),
        c("torch::autograd::Node::operator()(std::vector<at::Tensor>&&)", "libtorch_cpu.so"),
        *GET[2:3], c("thread_run", "libpython3.11.so.1.0"), c("pool<int>::work()", "libown.so"),
        c("start_thread", "libc.so.6"),
    ]  # fmt: skip
    assert draw(make(1, "a", frames))[2:] == [
        "    clock_nanosleep (libc.so.6)",
        "    time_sleep (libpython3.11.so.1.0)",
        "    step (a.py:3)",
        "    torch::autograd::Node::operator() (libtorch_cpu.so)",
        "    worker (app/pool.py:4)",
        "    pool::work (libown.so)",
    ]
    assert len(draw(make(1, "a", frames[-2:]))) == 4  # without Python, all of it
    ours = c("watch", "python3.11/site-packages/sonde/_core.cpython-311.so")
    assert is_ours([*frames[:1], ours]) and not is_ours(frames) and not is_ours(frames[-2:])


def test_names_of_functions_are_short() -> None:
    names = {
        "void f<double>(char, long const*) [clone .constprop.0]": "f",
        "n::(anonymous namespace)::mm(a::B, C const&)": "n::(anonymous namespace)::mm",
        "f(at::T&)::{lambda()#1}::operator()() const": "f::{lambda#1}::operator()",
        "operator new(unsigned long)": "operator new",
        "libx.so+0x12": "libx.so+0x12",
        "a<(b->c)>::d()": "a::d",
        "t::Library& t::Library::def<char const*>(char const*&&) &": "t::Library::def",
        "t::Tensor t::Tensor::to(t::Options) const &&": "t::Tensor::to",
    }
    assert {name: shorten_name(name) for name in names} == names
