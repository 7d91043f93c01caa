"""Sums of kernels of every n-th step: with torch on the CPU, and on a real device."""

from __future__ import annotations

import json
import os

import pytest

import sonde
from sonde.session import list_sessions
from support.needs import need, need_cuda

need("torch")

HEAD = """
import json, sonde
folder = sonde.start(collector=False, source_kernel="on", kernel_every=4, torch_budget_pct={budget})
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(256, 512), torch.nn.Linear(512, 2)
    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))       # line 10
model = Net().to("{device}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.ones(64, 256).to("{device}")
def step():
    loss = model(data).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
# Our sums of one step, and those of torch.profiler of as much work right after.
REAL = """
for _ in range(40): step()
torch.cuda.synchronize()
sonde.stop()
from torch.profiler import ProfilerActivity, profile
for _ in range(3): step()
torch.cuda.synchronize()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    for _ in range(10): step()
    torch.cuda.synchronize()
works = [e for e in prof.events() if str(e.device_type).endswith("CUDA") and not e.is_user_annotation]
print(json.dumps([len(works) / 10, sum(e.time_range.elapsed_us() for e in works) * 100]))
"""

# A profiler of the program's own at every distance from our windows, which come at every fourth step.
COMPANY = """
from torch.profiler import ProfilerActivity, profile
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (data.device.type == "cuda")
def count_works(prof):
    return sum(str(e.device_type).endswith("CUDA") and not e.is_user_annotation for e in prof.events())
seen = []
for between in range(8):
    for _ in range(between): step()
    with profile(activities=activities) as prof:
        for _ in range(3): step()
        if data.device.type == "cuda": torch.cuda.synchronize()
    tanhs = [event.name for event in prof.events()].count("aten::tanh")
    assert tanhs == 3, (between, tanhs)
    seen.append(count_works(prof))
for _ in range(20): step()                # ours work again afterwards
sonde.stop()
with profile(activities=activities) as prof:
    for _ in range(3): step()
    if data.device.type == "cuda": torch.cuda.synchronize()
print(json.dumps([seen, count_works(prof)]))
"""
# The same computation captured as a graph at every distance from our windows, and replayed in some of them.
GRAPHS = """
import copy
frozen = copy.deepcopy(model)
with torch.no_grad():
    right = frozen(data)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.no_grad(), torch.cuda.stream(side):
    for _ in range(3): frozen(data)
torch.cuda.current_stream().wait_stream(side)
torch.cuda.synchronize()
for between in range(8):
    for _ in range(between): step()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        answer = frozen(data)
    for _ in range(8):
        graph.replay()
        step()
    torch.cuda.synchronize()
    assert torch.equal(answer, right), between
sonde.stop()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(answer, right)
print("unharmed")
"""
# Children at every distance from our windows; those of a program that uses CUDA may only use the processor.
FORKS = """
import os, warnings
warnings.simplefilter("ignore")
from torch.autograd import profiler as inner
from torch.profiler import ProfilerActivity, profile
ended, end = [], torch.autograd._disable_profiler
def note_end():
    ended.append(os.getpid())
    return end()
def act_in_child():
    sonde.mark("begun")                  # the child's own recording begins
    if os.getpid() in ended:             # CUDA must not be touched here: it is the parent's window
        return 8
    if data.device.type == "cuda":
        return 7
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        torch.ones(8).tanh()
    return 7 if [event.name for event in prof.events()].count("aten::tanh") == 1 else 9
torch.autograd._disable_profiler = note_end
ends, inside = [], 0
for _ in range(12):
    step()
    inside += inner._is_profiler_enabled
    pid = os.fork()
    if pid == 0:
        os._exit(act_in_child())
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
for _ in range(12): step()
loss = float(model(data).sum())
sonde.stop()
assert loss == loss and set(ends) == {7}, (loss, ends)
print("unharmed", inside > 0)
"""
# What the profiler of our own windows has seen of the very same steps, written by the profiler itself.
SAME = """
saved, end = [], torch.autograd._disable_profiler
def save_and_end():
    result = end()
    saved.append(f"{folder}/../trace-{len(saved)}.json")
    result.save(saved[-1])
    return result
torch.autograd._disable_profiler = save_and_end
if data.device.type == "cuda":           # the host is ahead of the device, as in real training
    data = torch.ones(1 << 18, 256, device="cuda")
for number in range(300):                 # on a busy machine the device may take long to settle
    with torch.autograd.profiler.record_function("the whole step"):
        step()
    # A window is given up if the device, which others may use as well, is too far behind.
    if data.device.type == "cuda" and number % 4 == 3: torch.cuda.synchronize()
    if number >= 29 and len(saved) > 3: break
if data.device.type == "cuda": torch.cuda.synchronize()
sonde.stop()
print(json.dumps(saved))
"""


def head(device: str = "cpu", budget: int = 0) -> str:
    return HEAD.replace("{device}", device).replace("{budget}", str(budget))


def query(sql: str) -> list[dict[str, object]]:
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    return sonde.open(session.folder).query(sql).to_pylist()


def test_every_nth_step_is_added_up_by_operator_module_and_line(run_torch) -> None:
    run_torch(head() + "for _ in range(11): step()\nsonde.stop()\n")
    sums = query("SELECT * FROM python.kernel_sum WHERE step = 5 AND kernel = 'aten::addmm'")
    assert [(one["module"], one["func"], one["lineno"], one["backward"], one["count"])
            for one in sorted(sums, key=lambda one: one["module"])] == [
        ("Net.first", "Net.forward", 10, False, 1), ("Net.last", "Net.forward", 10, False, 1),
    ]  # fmt: skip
    (node,) = query(
        "SELECT module, lineno, backward FROM python.kernel_sum"
        " WHERE step = 5 AND kernel = 'TanhBackward0'"
    )
    assert node == {"module": "Net", "lineno": 10, "backward": True}
    (whole,) = query(
        "SELECT SUM(own_ns) AS own_ns, ANY_VALUE(step_ns) AS step_ns, COUNT(DISTINCT device) AS n"
        " FROM python.kernel_sum WHERE step = 5"
    )
    assert whole["n"] == 1 and 0 < whole["own_ns"] <= whole["step_ns"]
    steps = query("SELECT DISTINCT step FROM python.kernel_sum ORDER BY 1")
    assert [one["step"] for one in steps] == [5, 9]
    costs = query("SELECT direct_pct FROM sonde.overhead WHERE source = 'kernel'")
    assert len(costs) == 2 and all(one["direct_pct"] > 0 for one in costs)


def test_without_cuda_the_recording_says_what_is_left(run_torch) -> None:
    program = HEAD.format(budget=100, device="cpu") + "print(folder, torch.version.cuda)"
    folder, cuda = run_torch(program).stdout.split()
    rows = sonde.open(folder).query(
        "SELECT detail FROM sonde.source_log WHERE source = 'kernel' ORDER BY t_ns"
    )
    told = "this PyTorch was built without CUDA: operators alone are added up"
    details = [row["detail"] for row in rows.to_pylist()]
    assert (told in details) == (cuda == "None")
    # With CUDA, the first use of the profiler has a price that stays, and the recording says so.
    assert any("each launch takes" in (one or "") for one in details) == (cuda != "None")


def test_the_programs_own_profiler_comes_first(run_torch) -> None:
    done = run_torch(head() + """
from torch.profiler import profile
for _ in range(5): step()                    # the fifth ends with the profiler on
from torch.autograd import profiler as inner
assert inner._is_profiler_enabled
with profile() as prof:
    for _ in range(20): step()
names = [event.name for event in prof.events()]
assert names.count("aten::tanh") == 20, names.count("aten::tanh")
sonde.stop()
assert not inner._is_profiler_enabled
""")  # fmt: skip
    assert "Traceback" not in done.stderr
    assert query("SELECT COUNT(*) AS n FROM python.kernel_sum") == [{"n": 0}]


def test_within_a_budget_the_first_window_waits(run_torch) -> None:
    run_torch(head(budget=1) + "for _ in range(30): step()\nsonde.stop()\n")
    assert query("SELECT COUNT(*) AS n FROM python.kernel_sum") == [{"n": 0}]


def test_a_recording_that_stops_in_a_window_leaves_no_profiler(run_torch) -> None:
    run_torch(head() + """
for _ in range(5): step()
from torch.autograd import profiler as inner
assert inner._is_profiler_enabled
sonde.stop()
assert not inner._is_profiler_enabled
for _ in range(8): step()
""")  # fmt: skip


def test_sums_of_a_real_device_are_those_of_torchs_profiler(run_torch) -> None:
    need_cuda()
    done = run_torch(head("cuda") + REAL)
    count, total_ns = json.loads(done.stdout.splitlines()[-1])
    ours = query(
        "SELECT step, SUM(count) AS n, SUM(total_ns) AS total_ns FROM python.kernel_sum"
        " WHERE kind <> 'idle' GROUP BY step ORDER BY step"
    )
    assert len(ours) >= 2
    assert {one["n"] for one in ours[1:]} == {count}
    median_ns = float(sorted(one["total_ns"] for one in ours)[len(ours) // 2])
    assert abs(median_ns - total_ns) <= 0.01 * total_ns, (median_ns, total_ns)
    (places,) = query(
        "SELECT COUNT(*) FILTER (module LIKE 'Net%' AND lineno = 10) AS known, COUNT(*)"
        " FILTER (backward AND module LIKE 'Net%') AS back FROM python.kernel_sum"
        " WHERE kind = 'kernel'"
    )
    assert places["known"] > 0 and places["back"] > 0
    idle = query("SELECT DISTINCT kernel FROM python.kernel_sum WHERE kind = 'idle'")
    assert {one["kernel"] for one in idle} <= {"nothing launched", "synchronisation", "queued"}


def read_trace(path: str, category: str) -> dict[str, list[float]]:
    """Return how often each kernel or operator ran in the step of a trace, and for how long in ns;
    a kernel belongs to the step in which it was launched."""
    with open(path) as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    step = next(one for one in events if one["name"] == "the whole step"
                and one["cat"] == "user_annotation")  # fmt: skip
    begin, end = step["ts"], step["ts"] + step["dur"]
    launches = {
        one["args"]["correlation"]: one["ts"]
        for one in events
        if one["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {})
    }
    found: dict[str, list[float]] = {}
    for one in events:
        if one["cat"] != category:
            continue
        at = one["ts"] if category == "cpu_op" else launches.get(one["args"]["correlation"], 0)
        if begin <= at < end and (category == "kernel" or one["name"].startswith("aten::")):
            known = found.setdefault(one["name"], [0, 0.0])
            known[0] += 1
            known[1] += 1000 * one["dur"]
    return found


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sums_are_those_of_the_profiler_on_the_same_steps(run_torch, device: str) -> None:
    if device == "cuda":
        need_cuda()
    done = run_torch(head(device) + SAME)
    paths = json.loads(done.stdout.splitlines()[-1])
    kind, category = ("kernel", "kernel") if device == "cuda" else ("op", "cpu_op")
    rows = query(
        "SELECT step, kernel, SUM(count)::INT AS count, SUM(total_ns)::BIGINT AS total_ns"
        f" FROM python.kernel_sum WHERE kind = '{kind}'"
        + (" AND kernel LIKE 'aten::%'" if device == "cpu" else "")
        + " GROUP BY ALL"
    )
    steps = sorted({row["step"] for row in rows})
    assert 3 <= len(steps) <= len(paths) <= len(steps) + 1  # the last may have ended in its window
    for number, path in zip(steps, paths, strict=False):
        ours = {row["kernel"]: row for row in rows if row["step"] == number}
        theirs = read_trace(path, category)
        assert {name: one["count"] for name, one in ours.items()} == {
            name: count for name, (count, _ns) in theirs.items()
        }
        for name, (_count, total_ns) in theirs.items():
            assert abs(ours[name]["total_ns"] - total_ns) <= max(0.01 * total_ns, 10), name


def count_windows() -> int:
    """Return how many steps have sums in the recording of the program, not of its children."""
    first = min(list_sessions(os.environ["SONDE_DIR"]), key=lambda session: session.start_wall_ns)
    rows = sonde.open(first.folder).query("SELECT COUNT(DISTINCT step) AS n FROM python.kernel_sum")
    return rows["n"][0].as_py()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_programs_own_profiler_sees_all_of_its_steps(run_torch, device: str) -> None:
    if device == "cuda":
        need_cuda()
    seen, alone = json.loads(run_torch(head(device) + COMPANY).stdout.splitlines()[-1])
    assert (alone > 0) == (device == "cuda") and seen == [alone] * 8
    assert count_windows() >= 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_children_forked_in_a_window_end_as_they_should(run_torch, device: str) -> None:
    if device == "cuda":
        need_cuda()
    assert run_torch(head(device) + FORKS).stdout.splitlines()[-1] == "unharmed True"
    assert count_windows() >= 2


def test_graphs_are_captured_and_replayed_beside_windows(run_torch) -> None:
    need_cuda()
    assert run_torch(head("cuda") + GRAPHS).stdout.splitlines()[-1] == "unharmed"
    assert count_windows() >= 2
