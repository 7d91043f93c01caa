"""The phases of torch.compile as runs: with a stand-in for torch, and with torch itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import Session, list_sessions, runs, steering
from sonde.session.run import SUCCEEDED
from sonde.session.run_result import merge
from support.needs import need

# The part of torch that the source knows: a class that is asked, and a wrapper that asks it.
FAKE = {
    "__init__.py": """
from torch._utils_internal import wrap
import torch._guards
__version__ = "9.9"
def compile(): pass
import torch._meta_registrations  # as the real one goes on
""",
    "_meta_registrations.py": "",
    "_utils_internal.py": """
from torch._strobelight.compile_time_profiler import StrobelightCompileTimeProfiler as Profiler
def wrap(name):
    def decorate(function):
        def wrapper(*args, **kwargs):
            if not Profiler.enabled:
                return function(*args, **kwargs)
            return Profiler.profile_compile_time(function, name, *args, **kwargs)
        return wrapper
    return decorate
""",
    "_strobelight/__init__.py": "",
    "_strobelight/compile_time_profiler.py": """
class StrobelightCompileTimeProfiler:
    enabled = False
    @classmethod
    def profile_compile_time(cls, function, name, *args, **kwargs):
        raise SystemExit("torch's own profiler was called")
""",
    "_guards.py": """
import threading
local = threading.local()
class CompileContext:
    @staticmethod
    def current_compile_id():
        return getattr(local, "id", None)
""",
}
HEAD = """
import sys, threading, time
import sonde
def burn(ms):
    end = time.thread_time() + ms / 1000  # of this thread: elapsed time is no less
    while time.thread_time() < end: pass
def use(name, at=None):
    import torch
    def decorate(function):
        wrapped = torch.wrap(name)(function)
        def call(*args, **kwargs):
            before = getattr(torch._guards.local, "id", None)
            torch._guards.local.id = at
            try: return wrapped(*args, **kwargs)
            finally: torch._guards.local.id = before
        return call
    return decorate
def seam():
    from torch._strobelight.compile_time_profiler import StrobelightCompileTimeProfiler as Profiler
    return Profiler
"""
START = "sonde.start(collector='off', source_compile=True)\n"


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A stand-in for torch, beside the program."""
    for name, code in FAKE.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(code)
    return tmp_path / "torch"


def only_session(root: Path) -> Session:
    (session,) = list_sessions(str(root))
    return session


def read_phases(session: Session) -> list[dict[str, object]]:
    return (
        sonde.open(session.folder)
        .query(
            "SELECT phase, compile_id, run, state, error, dur_ns FROM python.compile_phase "
            "ORDER BY t_ns"
        )
        .to_pylist()
    )


def read_word(session: Session) -> tuple[str, str | None]:
    """The newest word on the source."""
    (row,) = (
        sonde.open(session.folder)
        .query("SELECT state, detail FROM sonde.source WHERE source = 'compile'")
        .to_pylist()
    )
    return row["state"], row["detail"]


def list_results(session: Session) -> list[runs.Run]:
    runs.process_all(session)
    return runs.list_runs(session)


def find_names(run: runs.Run) -> set[str]:
    return {frame[0] for path, _ in run.result().iter_stacks() for frame in path}


# ---- the hook ------------------------------------------------------------------------------------

ONE = """
@use("compile_inner", "1/0")
def inner(a, *, b):
    burn(60)
    return a + b
print(inner(1, b=2))
"""


@pytest.mark.parametrize("order", ["earlier", "later"])
def test_a_phase_is_a_run_whenever_torch_is_imported(run, fake, root, order: str) -> None:
    done = run(HEAD + ("import torch\n" + START if order == "earlier" else START) + ONE)
    assert done.stdout == "3\n" and done.stderr == ""
    session = only_session(root)
    (found,) = list_results(session)
    assert found.about.name == "compile_inner"
    assert found.tags == [
        "torch.compile",
        "phase:compile_inner",
        f"compile:{session.id}",
        "frame:1/0",
    ]
    assert "inner" in find_names(found)
    (phase,) = read_phases(session)
    lasted_ns = phase.pop("dur_ns")
    assert phase == {
        "phase": "compile_inner", "compile_id": "1/0", "run": found.id, "state": "profiled",
        "error": None,
    }  # fmt: skip
    begin_ns, end_ns = found.read_times()
    assert 60e6 <= lasted_ns <= end_ns - begin_ns


WAITING = """
before = list(sys.meta_path)
others = dict.fromkeys(("source_torch", "source_collective", "source_oom", "source_capture", "source_cuda",
                        "source_cuda_growth"), False)
sonde.start(collector='off', source_compile=True, **others)
waiter = [finder for finder in sys.meta_path if finder not in before]
import json.tool                       # something else
import torch
assert len(waiter) == 1 and seam().enabled
assert sys.meta_path == before
for name, module in list(sys.modules.items()):
    if name.startswith("torch"):
        spec = module.__spec__
        assert spec.name == name and type(spec.loader).__name__ == "SourceFileLoader", name
        assert module.__loader__ is spec.loader and spec.loader.get_source(name) is not None
try:
    import torch.nothing
except ModuleNotFoundError as error:
    assert error.name == "torch.nothing"
"""


def test_waiting_for_torch_changes_no_import_and_leaves_nothing(run, fake, root) -> None:
    assert run(HEAD + WAITING).stderr == ""
    log = (
        sonde.open(only_session(root).folder)
        .query("SELECT state, detail FROM sonde.source_log WHERE source = 'compile' ORDER BY t_ns")
        .to_pylist()
    )
    assert [(row["state"], row["detail"]) for row in log] == [
        ("on", "waiting for the program to import torch"),
        ("on", None),
        ("off", None),
    ]


def test_a_program_without_torch_is_not_touched(run, root) -> None:
    code = "before = list(sys.meta_path)\n" + START + "sonde.stop()\n"
    run(HEAD + code + "assert sys.meta_path == before and 'torch' not in sys.modules")
    assert read_phases(only_session(root)) == []


def test_the_source_is_off_until_asked(run, fake, root) -> None:
    run(HEAD + "sonde.start(collector='off')\n" + ONE)
    assert list_results(only_session(root)) == []


STOPPED = """
import torch
before = dict(vars(seam()))
names = ("enabled", "profile_compile_time")
for _ in range(3):
    sonde.start(collector='off', source_compile=True)
    assert all(vars(seam())[name] is not before[name] for name in names)
    sonde.stop()
    assert dict(vars(seam())) == before
    assert all(vars(seam())[name] is before[name] for name in names)
"""


def test_stopping_leaves_torch_as_it_was(run, fake) -> None:
    run(HEAD + STOPPED)


OTHERS = """
import torch
sonde.start(collector='off', source_compile=True)
ours = seam().profile_compile_time
def theirs(function, name, *args, **kwargs):
    return ours(function, name, *args, **kwargs) + 100
seam().profile_compile_time = theirs
sonde.stop()
assert seam().profile_compile_time is theirs and seam().enabled
"""


def test_whoever_took_the_place_after_us_keeps_it_and_phases_run_on(run, fake, root) -> None:
    assert run(HEAD + OTHERS + ONE).stdout == "103\n"
    assert list_results(only_session(root)) == []


def test_torchs_own_profiler_is_left_alone(run, fake, root) -> None:
    run(HEAD + "import torch\nseam().enabled = True\n" + START)
    assert read_word(only_session(root)) == (
        "unavailable",
        "torch's own phase profiler is on; only one of the two can be",
    )


@pytest.mark.parametrize("order", ["earlier", "later"])
def test_a_torch_without_the_hook_is_named_in_one_line(run, fake, root, order: str) -> None:
    (fake / "_utils_internal.py").write_text("wrap = lambda name: lambda function: function")
    late = "import torch, json.decoder, xml.dom\n"  # the next import after torch is enough
    done = run(HEAD + (late + START if order == "earlier" else START + late) + ONE)
    assert done.stdout == "3\n" and done.stderr == ""
    assert read_word(only_session(root)) == (
        "unavailable",
        "torch 9.9 has no hook around the phases of torch.compile",
    )


LIVE = """
import os, torch
sonde.start(collector='off')
@use("compile_inner", "0/0")
def inner(): burn(5)
print("ready", flush=True)
for turn in range(5):
    while not os.path.exists(sys.argv[1] + str(turn)): time.sleep(0.001)
    inner()
    print("done", flush=True)
"""


def test_it_is_switched_on_filtered_and_off_while_the_program_runs(
    start, fake, root, tmp_path
) -> None:
    process = start(HEAD + LIVE, str(tmp_path / "go"))
    session = only_session(root)
    steps = (
        ({}, None),
        ({"source.compile": "on"}, "profiled"),
        ({"compile.frames": "1/.*"}, "filtered"),
        ({"compile.frames": "off"}, "profiled"),
        ({"source.compile": "off"}, None),
    )
    for turn, (changes, _state) in enumerate(steps):
        steering.configure(session, changes, 30)
        (tmp_path / f"go{turn}").touch()
        assert process.stdout.readline() == "done\n"
    assert process.wait(60) == 0
    found = [phase["state"] for phase in read_phases(session)]
    assert found == [state for _changes, state in steps if state is not None]


# ---- what becomes of a phase ---------------------------------------------------------------------

NESTED = """
@use("backward", "1/0")
def inner(): burn(10); return "inner"
@use("compile_inner", "1/0")
def outer(): burn(10); return inner(), inner(), "outer"
print(outer())
print(inner())
"""


def test_a_phase_in_a_phase_runs_is_counted_and_not_profiled(run, fake, root) -> None:
    done = run(HEAD + START + NESTED)
    assert done.stdout == "('inner', 'inner', 'outer')\ninner\n" and done.stderr == ""
    session = only_session(root)
    states = [(phase["phase"], phase["state"]) for phase in read_phases(session)]
    assert states == [
        ("compile_inner", "profiled"),
        ("backward", "recursive"),
        ("backward", "recursive"),
        ("backward", "profiled"),
    ]
    assert [one.about.name for one in list_results(session)] == ["compile_inner", "backward"]


RAISES = """
class Odd(Exception): pass
failure = None
@use("compile_inner", "1/0")
def bad():
    burn(10)
    raise failure
@use("compile_inner", "1/1")
def good(): burn(10); return "good"
for kind in (Odd, KeyboardInterrupt, SystemExit, GeneratorExit):
    failure = kind("told")
    try:
        bad()
    except BaseException as error:
        assert error is failure and error.args == ("told",)
        trace = error.__traceback__
        while trace.tb_next: trace = trace.tb_next
        assert trace.tb_frame.f_code.co_name == "bad"
        print(kind.__name__, len(getattr(error, "__notes__", [])))
    print(good())
"""


def test_what_a_phase_raises_is_raised_and_the_next_one_is_profiled(run, fake, root) -> None:
    done = run(HEAD + START + RAISES)
    assert done.stdout.splitlines() == [
        "Odd 1", "good", "KeyboardInterrupt 1", "good", "SystemExit 1", "good", "GeneratorExit 0",
        "good",
    ]  # fmt: skip
    assert done.stderr == ""
    session = only_session(root)
    found = [
        (phase["compile_id"], phase["state"], phase["error"]) for phase in read_phases(session)
    ]
    errors = ("Odd", "KeyboardInterrupt", "SystemExit", "GeneratorExit")
    assert found == [
        entry
        for error in errors
        for entry in (("1/0", "profiled", error), ("1/1", "profiled", None))
    ]
    assert [one.state for one in list_results(session)] == [SUCCEEDED] * 8


FRAMES = """
for name, at in (("compile_inner", "1/0"), ("compile_inner", "11/0"), ("backward", "1/3"),
                 ("compile_inner", "2/1"), ("export", None)):
    use(name, at)(lambda: burn(5))()
"""


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [("", ["1/0", "11/0", "1/3", "2/1", None]), ("1/.*", ["1/0", "1/3"]), (".*/1", ["2/1"])],
)
def test_the_frame_filter_is_matched_at_the_begin_of_the_id(
    run, fake, root, pattern: str, wanted: list[str | None]
) -> None:
    run(HEAD + START + FRAMES, SONDE_COMPILE_FRAMES=pattern)
    phases = read_phases(only_session(root))
    assert [phase["compile_id"] for phase in phases if phase["state"] == "profiled"] == wanted
    assert {phase["state"] for phase in phases} <= {"profiled", "filtered"}
    assert len(phases) == 5


THREADS = """
inside, leave = threading.Event(), threading.Event()
@use("compile_inner", "0/0")
def long():
    inside.set(); assert leave.wait(30); return "long"
@use("compile_inner", "1/0")
def short(): burn(5); return "short"
found = []
thread = threading.Thread(target=lambda: found.append(long()))
thread.start(); assert inside.wait(30)
others = [threading.Thread(target=lambda: found.append(short())) for _ in range(7)]
for other in others: other.start()
for other in others: other.join()
leave.set(); thread.join()
found.append(short())
print(*found)
"""


def test_phases_of_several_threads_all_run_and_one_is_profiled(run, fake, root) -> None:
    done = run(HEAD + START + THREADS)
    assert done.stdout.split() == ["short"] * 7 + ["long", "short"] and done.stderr == ""
    session = only_session(root)
    states = [phase["state"] for phase in read_phases(session)]
    assert states == ["profiled", *["conflict"] * 7, "profiled"]
    first, last = list_results(session)
    assert (first.about.skipped, last.about.skipped) == (7, 0)


PAUSED = """
@use("compile_inner", "0/0")
def inner(): return "ran"
sonde.pause(); print(inner()); sonde.resume(); print(inner())
"""


def test_nothing_is_profiled_while_recording_is_paused(run, fake, root) -> None:
    assert run(HEAD + START + PAUSED).stdout.split() == ["ran", "ran"]
    assert [phase["state"] for phase in read_phases(only_session(root))] == ["profiled"]


def test_a_phase_that_cannot_be_profiled_runs_without_a_word(run, fake, root) -> None:
    done = run(HEAD + "sonde.start(collector='off', source_compile=1, source_stack=False)\n" + ONE)
    assert (done.stdout, done.stderr) == ("3\n", "")
    (phase,) = read_phases(only_session(root))
    assert (phase["state"], phase["run"]) == ("failed", None)


SKIP = """
@use("_compile")
def inner(*, skip): return sys._getframe(skip).f_code.co_name
print(inner(skip=2))       # the wrapper and this function's own caller
sonde.stop()
print(inner(skip=2))
"""


def test_frames_that_torch_leaves_out_of_stacks_are_left_out_with_ours(run, fake) -> None:
    assert run(HEAD + START + SKIP).stdout.split() == ["call", "call"]


STOPPED_INSIDE = """
@use("compile_inner", "0/0")
def inner():
    burn(10); sonde.stop(); return "ran"
print(inner())
assert sonde.start(collector='off') and not seam().enabled
"""


def test_a_recording_that_is_stopped_in_a_phase_ends_its_run(run, fake, root) -> None:
    done = run(HEAD + START + STOPPED_INSIDE)
    assert (done.stdout, done.stderr) == ("ran\n", "")
    first = min(list_sessions(str(root)), key=lambda session: session.start_wall_ns)
    (found,) = list_results(first)
    assert found.state == SUCCEEDED and "inner" in find_names(found)


FORKED = """
import os
from sonde.session.writer import find_current
@use("compile_inner", "0/0")
def inner(): burn(5); return "ran"
@use("compile_inner", "1/0")
def outer():
    child = os.fork()
    if child == 0:
        end = time.monotonic() + 30
        while find_current() is None: assert time.monotonic() < end; time.sleep(0.001)
        return "child"
    assert os.waitpid(child, 0)[1] == 0
    return "parent"
who = outer()
inner()
print(who, flush=True)
"""


def test_a_fork_in_a_phase_gives_the_child_phases_of_its_own(run, fake, root) -> None:
    assert run(HEAD + START + FORKED).stdout.split() == ["child", "parent"]
    parent, child = sorted(list_sessions(str(root)), key=lambda session: session.start_wall_ns)
    assert [phase["compile_id"] for phase in read_phases(parent)] == ["1/0", "0/0"]
    assert [phase["compile_id"] for phase in read_phases(child)] == ["0/0"]
    for session in (parent, child):
        assert {one.state for one in list_results(session)} <= {SUCCEEDED}


# ---- asked for by the environment ----------------------------------------------------------------


def test_rate_time_and_depth_of_the_runs_are_settings_of_ours_and_of_torch(run, fake, root) -> None:
    run(
        HEAD + START + "@use('compile_inner', '0/0')\ndef f(): burn(100)\n"
        "def deep(n): f() if n == 0 else deep(n - 1)\ndeep(20)\n",
        SONDE_COMPILE_EVERY="5ms", COMPILE_STROBELIGHT_MAX_PROFILE_TIME="77",
        COMPILE_STROBELIGHT_MAX_STACK_LENGTH="4",
    )  # fmt: skip
    (found,) = runs.list_runs(only_session(root))
    assert (found.about.every_ns, found.about.max_s) == (5_000_000, 77.0)
    assert max(len(path) for path, _ in found.result().iter_stacks()) <= 5  # and a frame <cut>


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"SONDE_TORCH_COMPILE": "1"}, 1),
        ({"SONDE_TORCH_COMPILE": "1", "SONDE": "1"}, 1),
        ({"TORCH_COMPILE_STROBELIGHT": "True"}, 1),
        ({"TORCH_COMPILE_STROBELIGHT": "meta"}, 1),  # torch takes any text for yes
        ({"TORCH_COMPILE_STROBELIGHT": "1", "SONDE_TORCH_COMPILE": "0"}, None),
        ({"SONDE_SOURCE_COMPILE": "on", "SONDE": "1"}, 1),
        ({"SONDE": "1"}, 0),
        ({"SONDE_TORCH_COMPILE": "1", "SONDE_SOURCE_COMPILE": "off"}, 0),
        ({"SONDE_TORCH_COMPILE": "0"}, None),
        ({"SONDE_TORCH_COMPILE": "1", "SONDE": "0"}, None),
    ],
)
def test_the_environment_asks_for_it(run, fake, root, env: dict[str, str], expected) -> None:
    """Expected: how many runs; None: nothing is recorded at all."""
    run(HEAD + ONE, SONDE_COLLECTOR="off", **env)
    sessions = list(list_sessions(str(root)))
    assert expected is None if not sessions else len(list_results(sessions[0])) == expected


def test_a_pattern_that_is_none_is_refused(sonde_cli) -> None:
    done = sonde_cli("run", "--set", "compile.frames=(", "x.py")
    assert done.returncode == 2 and "compile.frames=( is not understood" in done.stderr


# ---- the collector -------------------------------------------------------------------------------

MANY = """
sonde.start(source_compile=True)
for at in range(5): use("compile_inner", f"{at}/0")(lambda: burn(5))()
print("ready", flush=True)
time.sleep(600)
"""


def test_marks_of_runs_do_not_pile_up_while_the_program_runs(start, fake, root) -> None:
    start(HEAD + MANY)
    session = only_session(root)
    found = runs.list_runs(session)
    assert len(found) == 5
    folder = Path(session.folder, runs.FOLDER)
    wait_for(lambda: not list(folder.rglob("*.nodes")))
    assert [one.find_state() for one in found] == [(SUCCEEDED, None)] * 5


# ---- torch itself --------------------------------------------------------------------------------

REAL = """
import json, sys, torch
from torch._dynamo.utils import counters
def work(x):
    y = x.sin() @ x
    print("a graph break", file=sys.stderr)
    return (y.cos() + 1).sum()
found = {}
for backend in ("eager", "aot_eager"):
    x = torch.arange(9.0).reshape(3, 3).requires_grad_()
    y = torch.compile(work, backend=backend)(x)
    y.backward()
    found[backend] = [y.item(), x.grad.tolist()]
    torch._dynamo.reset()
try:
    torch.compile(work, backend="eager", fullgraph=True)(x)
except torch._dynamo.exc.Unsupported as error:
    found["error"] = [type(error).__name__, str(error)]
found["breaks"] = sum(counters["graph_break"].values())
found["stats"] = dict(counters["stats"])
print(json.dumps(found))
"""


def test_with_torch_itself_phases_are_runs_and_nothing_else_changes(
    run, run_torch, root, sonde_cli
) -> None:
    need("torch")
    bare = run_torch(REAL)
    ours = run(REAL, SONDE_TORCH_COMPILE="1", SONDE_COLLECTOR="off")
    assert json.loads(ours.stdout) == json.loads(bare.stdout)
    assert ours.stderr == bare.stderr
    assert json.loads(ours.stdout)["breaks"] >= 2
    session = only_session(root)
    phases, found = read_phases(session), list_results(session)
    assert [phase["state"] for phase in phases] == ["profiled"] * len(found)
    assert [phase["run"] for phase in phases] == [one.id for one in found]
    assert {phase["phase"] for phase in phases} == {"compile_inner"}
    assert [phase["compile_id"] for phase in phases][:2] == ["0/0", "1/0"]
    assert [phase["error"] for phase in phases][-1] == "Unsupported"
    for one, phase in zip(found, phases, strict=True):
        assert one.state == SUCCEEDED and one.about.name == "compile_inner"
        assert one.tags[:2] == ["torch.compile", "phase:compile_inner"]
        assert one.tags[2:] == [f"compile:{session.id}", f"frame:{phase['compile_id']}"]
    assert any(
        "convert_frame" in frame[1] for path, _ in found[0].result().iter_stacks() for frame in path
    )
    check_merge(found, sonde_cli)


def check_merge(found: list[runs.Run], sonde_cli) -> None:
    """All phases by their tag are the sum of each of them."""
    each = [one.result() for one in found]
    shown = json.loads(
        sonde_cli("profile", "results", "--tag", "torch.compile", "--format", "json").stdout
    )
    assert shown["samples"] == sum(result.samples for result in each) > 0
    whole = merge(each, "all")
    for at in range(4):
        sums = [sum(numbers[at] for _, numbers in result.iter_stacks()) for result in each]
        assert sum(numbers[at] for _, numbers in whole.iter_stacks()) == sum(sums)
