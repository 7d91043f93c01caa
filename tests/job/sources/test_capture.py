"""Captures of torch's profiler in live jobs, with torch itself."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import Session, captures, list_sessions
from sonde.store import kineto_file
from support.needs import need, need_cuda

need("torch")

HEAD = """
import json, os, sys, threading, time
import sonde
folder = sonde.start(collector=False, {settings})
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    loss = model(torch.ones(4, 8)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
def find_state():
    try: names = os.listdir(os.path.join(folder, "captures"))
    except OSError: return None
    for name in names:
        if name.endswith(".about.json"):
            with open(os.path.join(folder, "captures", name)) as file: return json.load(file)["state"]
"""
FOREVER = """
print("ready", flush=True)
while True: step(); time.sleep(0.001)
"""


@pytest.fixture
def run(run_torch):
    return run_torch


@pytest.fixture
def start(start_torch):
    return start_torch


def head(settings: str = "") -> str:
    return HEAD.replace("{settings}", settings)


def session_of(process: subprocess.Popen[str]) -> Session:
    root = os.environ["SONDE_DIR"]
    return next(one for one in list_sessions(root) if one.pid == process.pid)


def query(process: subprocess.Popen[str], sql: str) -> list[dict[str, object]]:
    return sonde.open(session_of(process).folder).query(sql).to_pylist()


def test_a_capture_holds_the_steps_that_were_asked_for(start, sonde_cli) -> None:
    process = start(head("torch_budget_pct=0") + FOREVER)  # the modules of every step
    done = sonde_cli("capture", process.pid, "--steps", 3)
    assert (done.returncode, done.stderr) == (0, "")
    path = Path(done.stdout.strip())
    assert path.parent == Path(session_of(process).folder, "captures") and path.name.endswith(".gz")
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    (capture,) = query(process, "SELECT * FROM python.torch_capture")
    assert (capture["state"], capture["steps"], capture["asked_steps"]) == ("done", 3, 3)
    assert capture["file"] == str(path) and capture["file_bytes"] == path.stat().st_size
    rows = query(
        process,
        "SELECT step, COUNT(*) FILTER (op = 'aten::addmm') AS forward,"
        " COUNT(*) FILTER (op = 'autograd::engine::evaluate_function: AddmmBackward0') AS backward,"
        " SUM(self_ns) AS own, MAX(t_ns + dur_ns) - MIN(t_ns) AS whole"
        " FROM python.torch_op GROUP BY step ORDER BY step",
    )
    first = capture["first_step"]
    assert [row["step"] for row in rows] == [first, first + 1, first + 2]
    assert {(row["forward"], row["backward"]) for row in rows} == {(2, 2)}
    assert all(0 < row["own"] <= row["whole"] for row in rows)
    modules = query(
        process, "SELECT DISTINCT module FROM python.torch_op WHERE op = 'aten::addmm' ORDER BY 1"
    )
    assert [row["module"] for row in modules] == ["Sequential.0", "Sequential.2"]
    backward = query(
        process,
        "SELECT module FROM python.torch_op WHERE op LIKE '%AddmmBackward0' AND backward"
        f" AND step = {first} AND depth = 0 ORDER BY t_ns",
    )
    assert [row["module"] for row in backward] == ["Sequential.2", "Sequential.0"]
    steps = query(process, f"SELECT t_ns, dur_ns FROM python.torch_step WHERE step = {first + 1}")
    (inside,) = query(
        process,
        f"SELECT COUNT(*) AS n FROM python.torch_op WHERE step = {first + 1} AND t_ns BETWEEN"
        f" {steps[0]['t_ns']} AND {steps[0]['t_ns'] + steps[0]['dur_ns']}",
    )
    (total,) = query(process, f"SELECT COUNT(*) AS n FROM python.torch_op WHERE step = {first + 1}")
    assert inside == total and total["n"] > 10


KNOWN = """
known = open(sys.argv[1], "w")
print("ready", flush=True)
while True:
    step()
    begin = time.monotonic_ns()
    torch.ones(7, 3) @ torch.ones(3, 11)
    print(begin, time.monotonic_ns(), file=known, flush=True)
"""


def test_an_operator_lies_inside_the_time_in_which_the_program_called_it(
    start, sonde_cli, tmp_path: Path
) -> None:
    process = start(head() + KNOWN, str(tmp_path / "known"))
    assert sonde_cli("capture", process.pid, "--steps", 20).returncode == 0
    found = query(
        process,
        "SELECT t_ns, t_ns + dur_ns AS end_ns FROM python.torch_op"
        " WHERE op = 'aten::mm' AND input_shapes = '[[7,3],[3,11]]'",
    )
    lines = (tmp_path / "known").read_text().splitlines()
    known = [tuple(map(int, line.split())) for line in lines if line.count(" ") == 1]
    assert 19 <= len(found) <= 21
    for one in found:
        assert any(begin <= one["t_ns"] and one["end_ns"] <= end for begin, end in known), one


REMAINS = """
import torch.autograd.profiler as profiler
from sonde.job.torch.steps import steps
def look():
    return [id(profiler._prepare_profiler), id(profiler._enable_profiler), len(steps._listeners),
            profiler._is_profiler_enabled, threading.active_count(), os.environ.get("KINETO_LOG_LEVEL"),
            len([o for o in __import__("gc").get_objects() if type(o) is profiler.profile])]
step()
before = look()
print("ready", flush=True)
while find_state() != "done": step()
end = time.monotonic() + 30
while os.listdir("/proc/self/task") and look() != before and time.monotonic() < end: step()
with profiler.profile() as own: step()
print(json.dumps([before, look()[:-1] + [before[-1]], len(own.function_events)]))
"""


def test_afterwards_nothing_of_it_is_in_the_program(start, sonde_cli) -> None:
    process = start(head() + REMAINS)
    assert sonde_cli("capture", process.pid, "--steps", 2).returncode == 0
    out, err = process.communicate(timeout=240)
    before, after, own = json.loads(out)
    assert before == after and own > 10
    assert "profiler" not in err and process.returncode == 0


def test_results_are_the_same_with_a_capture(start, run, sonde_cli) -> None:
    code = (
        "torch.manual_seed(7)\nfor p in model.parameters(): torch.nn.init.normal_(p)\n"
        "print('ready', flush=True)\n"
        "while sys.argv[1:] and find_state() != 'waiting': pass\n"
        "print(json.dumps([step() for _ in range(60)]), torch.rand(1).item())"
    )
    bare = run(head() + code).stdout.splitlines()[1]
    process = start(head() + code, "traced")
    done = sonde_cli("capture", process.pid, "--steps", 5)
    assert done.returncode == 0, done.stderr
    assert process.communicate(timeout=240)[0].strip() == bare


OWN = """
schedule = torch.profiler.schedule(wait=0, warmup={warmup}, active=10**6)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as own:
    print("ready", flush=True)
    while find_state() != "failed": step()
    for _ in range({warmup}): own.step()
    for _ in range(5): step()
print(sum(event.name == "aten::addmm" for event in own.events()))
"""


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_programs_own_profiler_is_left_alone(start, sonde_cli, warmup: int) -> None:
    process = start(head() + OWN.format(warmup=warmup))
    done = sonde_cli("capture", process.pid)
    said = (
        f"sonde: no capture of process {process.pid}: the program's own torch.profiler is active\n"
    )
    assert (done.returncode, done.stderr) == (1, said)
    out, _err = process.communicate(timeout=240)
    assert int(out) >= 10 and process.returncode == 0


MEANWHILE = """
print("ready", flush=True)
while find_state() != "recording": step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
    for _ in range(5): step()
print(sum(event.name == "aten::addmm" for event in own.events()))
while True: step()
"""


def test_a_profiler_that_the_program_starts_displaces_ours(start, sonde_cli) -> None:
    process = start(head() + MEANWHILE)
    done = sonde_cli("capture", process.pid, "--steps", 1000)
    assert done.returncode == 1
    assert "the program started its own torch.profiler during the capture" in done.stderr
    assert process.stdout.readline().strip() == "10"
    assert [p.name for p in Path(session_of(process).folder, "captures").iterdir()] == [
        f"{captures.list_ids(session_of(process).folder)[0]}{captures.ABOUT}"
    ]


def test_without_torch_one_line_says_so(start_anew, sonde_cli) -> None:
    process = start_anew(
        "import sonde, time\nsonde.start(collector=False)\nprint('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    done = sonde_cli("capture", process.pid)
    said = f"sonde: no capture of process {process.pid}: the program has not imported torch\n"
    assert (done.returncode, done.stderr) == (1, said)


IDLE = """
print("ready", flush=True)
while True: torch.ones(5, 6) @ torch.ones(6, 7); time.sleep(0.001)
"""


def test_where_no_step_ends_one_line_says_so(start, sonde_cli) -> None:
    process = start(head() + IDLE)
    done = sonde_cli("capture", process.pid, "--timeout", 1)
    assert (done.returncode, done.stderr) == (
        1,
        f"sonde: no capture of process {process.pid}: no step ended in 1 s; "
        "`--duration 5` needs no steps\n",
    )


def test_a_time_instead_of_steps(start, sonde_cli, tmp_path: Path) -> None:
    process = start(head() + IDLE)
    out = tmp_path / "x.json"
    done = sonde_cli("capture", process.pid, "--duration", "0.3", "-o", out)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(out), "")
    assert json.loads(out.read_text())["traceEvents"]
    (row,) = query(
        process,
        "SELECT COUNT(*) AS n, MAX(step) AS step, MAX(t_ns) - MIN(t_ns) AS whole"
        " FROM python.torch_op WHERE op = 'aten::mm'",
    )
    assert row["n"] > 1 and row["step"] is None and 0 < row["whole"] < 0.3e9


DIES = """
print("ready", flush=True)
while find_state() != "recording": step()
os._exit(0)
"""


def test_a_job_that_ends_meanwhile_is_one_line(start, sonde_cli) -> None:
    process = start(head() + DIES)
    done = sonde_cli("capture", process.pid, "--steps", 1000)
    said = f"sonde: no capture of process {process.pid}: it ended while it was recording\n"
    assert (done.returncode, done.stderr) == (1, said)
    (capture,) = query(process, "SELECT state, why FROM python.torch_capture")
    assert capture == {"state": "failed", "why": "the job ended while recording"}


FULL = """
import resource
print("ready", flush=True)
while find_state() != "recording": step()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))  # as a full disk
while True: step()
"""


def test_a_full_disk_is_one_line_and_leaves_no_pieces(start, sonde_cli) -> None:
    process = start(head() + FULL)
    done = sonde_cli("capture", process.pid, "--steps", 50)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the trace could not be written: torch could not write the whole trace" in done.stderr
    names = [path.name for path in Path(session_of(process).folder, "captures").iterdir()]
    assert len(names) == 1 and names[0].endswith(captures.ABOUT)
    assert process.poll() is None


STOPS = """
print("ready", flush=True)
while find_state() != "recording": step()
for _ in range(3): step()
while True: time.sleep(0.01)
"""


def test_steps_that_do_not_come_any_more_are_not_waited_for(start, sonde_cli) -> None:
    process = start(head() + STOPS)
    done = sonde_cli("capture", process.pid, "--steps", 500, "--timeout", 1)
    assert done.returncode == 0
    assert done.stderr.startswith(f"sonde: process {process.pid}: the time was up after ")
    (capture,) = query(process, "SELECT state, steps, why FROM python.torch_capture")
    assert capture["state"] == "done" and capture["steps"] >= 2 and "of 500 steps" in capture["why"]


THREAD = """
def train():
    while True: step()
threading.Thread(target=train, daemon=True).start()
print("ready", flush=True)
while True: time.sleep(0.01)
"""


def test_steps_of_another_thread_than_the_main_one(start, sonde_cli) -> None:
    process = start(head() + THREAD)
    assert sonde_cli("capture", process.pid, "--steps", 2).returncode == 0
    rows = query(
        process,
        "SELECT DISTINCT thread = (SELECT thread FROM python.torch_capture) AS same, pid = thread"
        " AS main FROM python.torch_op WHERE op = 'aten::addmm'",
    )
    assert rows == [{"same": True, "main": False}]


# Two ranks in step: each waits for the other's last one, as an all-reduce has them do.
TOGETHER = """
mine, other = (os.path.join(sys.argv[1], f"step{rank}") for rank in (sys.argv[2], 1 - int(sys.argv[2])))
for number in range(10**9):
    step()
    if number == 0: print("ready", flush=True)
    with open(mine + ".new", "w") as file: file.write(str(number))
    os.rename(mine + ".new", mine)
    while True:
        try: seen = int(open(other).read())
        except OSError: seen = -1
        if seen >= number: break
        time.sleep(0.0005)
"""


def test_all_ranks_record_the_same_steps(start, sonde_cli, tmp_path: Path) -> None:
    env = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job7"}
    # Not all of a job trains: this one is not asked for steps that it does not have.
    start(head() + "print('ready', flush=True)\nwhile True: time.sleep(0.01)", **env)
    for rank in (0, 1):
        start(head() + TOGETHER, str(tmp_path), str(rank), RANK=str(rank), **env)
    done = sonde_cli("capture", "job7", "--steps", 2)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 2
    sql = "SELECT * FROM python.torch_capture WHERE state = 'done'"
    rows = sonde.open("job7").query(sql).to_pylist()
    assert {row["rank"] for row in rows} == {0, 1} and {row["steps"] for row in rows} == {2}
    assert len({row["capture"] for row in rows}) == 1
    assert len({row["first_step"] for row in rows}) == 1


FORKS = """
print("ready", flush=True)
while find_state() != "recording": step()
child = os.fork()
if child == 0:
    # Forward only: where torch sees a GPU, autograd has threads, and refuses to work in a fork. Whatever
    # goes wrong, the child ends here and now, because its parent waits.
    import signal
    signal.alarm(60)
    try:
        import torch.autograd.profiler as profiler
        with profiler.profile() as own, torch.no_grad(): model(torch.ones(4, 8))
        is_own = own.function_events and profiler._prepare_profiler.__module__ != "sonde"
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        is_own = False
    os._exit(0 if is_own else 1)
status = os.waitpid(child, 0)[1]
while find_state() != "done": step()
print(status)
"""


def test_a_fork_in_a_capture_leaves_the_child_alone_and_the_capture_whole(start, sonde_cli) -> None:
    process = start(head() + FORKS)
    done = sonde_cli("capture", process.pid, "--steps", 20)
    assert done.returncode == 0, done.stderr
    assert process.communicate(timeout=240)[0].strip() == "0"
    (capture,) = query(process, "SELECT state, steps FROM python.torch_capture")
    assert capture == {"state": "done", "steps": 20}


COMPILED = """
from torch._dynamo.utils import counters
model = torch.compile(model, backend="aot_eager", fullgraph=True)
for _ in range(3): step()
before = dict(counters["stats"])
print("ready", flush=True)
while find_state() != "done": step()
print(before == dict(counters["stats"]), sum(counters["graph_break"].values()))
"""


def test_a_compiled_model_is_not_compiled_again(start, sonde_cli) -> None:
    process = start(head() + COMPILED)
    assert sonde_cli("capture", process.pid, "--steps", 3).returncode == 0
    assert process.communicate(timeout=240)[0].split() == ["True", "0"]


def test_a_device_is_recorded_and_no_kernel_is_lost(start, sonde_cli) -> None:
    need_cuda()
    code = head().replace("torch.ones(4, 8)", "torch.ones(4, 8, device='cuda')")
    process = start(code + "model.cuda()\n" + FOREVER)
    done = sonde_cli("capture", process.pid, "--steps", 5)
    assert done.returncode == 0, done.stderr
    found = kineto_file.read_trace(done.stdout.strip())
    about = captures.read_about(session_of(process).folder, Path(done.stdout.strip()).name[:-8])
    assert about.device == "cuda" and len(about.bounds) == 6
    offset_ns = about.anchors[0][0] - about.anchors[0][1]
    ran = {work.args["correlation"] for work in found.works}
    launched = [
        span for span in found.spans
        if span.name == "cudaLaunchKernel" and span.start_ns - offset_ns < about.end_ns
    ]  # fmt: skip
    assert len(launched) > 50 and {span.args["correlation"] for span in launched} <= ran
    for work in found.works:
        if work.launch is not None:
            assert work.start_ns > work.launch.start_ns


def test_one_capture_at_a_time(start, sonde_cli, tmp_path: Path) -> None:
    process = start(head() + FOREVER)
    session = session_of(process)
    first, second = "capture-a", "capture-b"
    from sonde import _core

    page = session.map_control(writable=True)
    captures.write_request(session.folder, first, captures.CaptureOptions(steps=1000))
    _core.control_ask(page)
    wait_for(lambda: captures.read_about(session.folder, first).state == captures.RECORDING)
    captures.write_request(session.folder, second, captures.CaptureOptions(steps=1))
    _core.control_ask(page)
    wait_for(lambda: captures.read_about(session.folder, second).state == captures.FAILED)
    assert (
        captures.read_about(session.folder, second).why == f"{first} is in progress in this process"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--steps", "0"), "--steps 0 is no count"), (("--timeout", "x"), "'x' is not a time"),
     (("-o", "/nowhere/x"), "/nowhere/x cannot be written")],
)  # fmt: skip
def test_what_cannot_be_is_said_before_anything_is_asked(start, sonde_cli, words, said) -> None:
    process = start(
        "import sonde, time\nsonde.start(collector=False)\nprint('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    done = sonde_cli("capture", process.pid, *words)
    assert done.returncode in (1, 2) and said in done.stderr and done.stderr.count("\n") == 1
    assert captures.list_ids(session_of(process).folder) == []


ENDS = """
print("ready", flush=True)
while find_state() != "recording": step()
"""


def test_a_program_that_ends_in_a_capture_ends_as_it_would(start, sonde_cli) -> None:
    process = start(head() + ENDS)
    done = sonde_cli("capture", process.pid, "--steps", 1000)
    said = f"sonde: no capture of process {process.pid}: the recording ended during the capture\n"
    assert (done.returncode, done.stderr) == (1, said)
    process.communicate(timeout=240)
    assert process.returncode == 0


def test_memory_and_stacks_are_in_the_trace_when_asked_for(start, sonde_cli, tmp_path) -> None:
    process = start(head() + FOREVER)
    out = tmp_path / "x.json.gz"
    done = sonde_cli("capture", process.pid, "--steps", 1, "--memory", "--stacks", "-o", out)
    assert done.returncode == 0, done.stderr
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "[memory]" for event in events)
    assert any(event.get("cat") == "python_function" for event in events)


def test_a_tool_that_is_interrupted_ends_the_capture(start) -> None:
    process = start(head() + FOREVER)
    session = session_of(process)
    tool = subprocess.Popen(
        [sys.executable, "-m", "sonde", "capture", str(process.pid), "--steps", "1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def find_states() -> list[object]:
        return [
            captures.read_about(session.folder, one).state
            for one in captures.list_ids(session.folder)
        ]

    wait_for(lambda: find_states() == [captures.RECORDING])
    tool.send_signal(signal.SIGINT)
    assert tool.communicate(timeout=240) == ("", "") and tool.returncode == 130
    wait_for(lambda: find_states() == [captures.FAILED])
    (capture,) = query(process, "SELECT why FROM python.torch_capture")
    assert capture == {"why": "the capture was cancelled"} and process.poll() is None
