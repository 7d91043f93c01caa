"""Out of memory: with a stand-in for torch's allocator, and on a real device."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import sonde
from sonde.session import list_sessions
from sonde.session.files import read_checked
from support.needs import need_cuda

# The part of torch that the source knows: a queue for when CUDA begins, an observer, numbers.
FAKE = {
    "__init__.py": """
import torch._C, torch.cuda
__version__ = "9.9"
def compile(): pass
""",
    "_C.py": """
observers = []
def _cuda_attach_out_of_memory_observer(call): observers.append(call)
""",
    "cuda/__init__.py": """
import torch._C
class OutOfMemoryError(RuntimeError): pass
_queued_calls = []
_is_up = False
def is_initialized(): return _is_up
def _lazy_call(call):
    if _is_up: call()
    else: _queued_calls.append((call, []))
def init():
    global _is_up
    _is_up = True
    for call, _ in _queued_calls: call()
def memory_stats(device):
    return {"allocated_bytes.all.current": 3 * 2**30, "reserved_bytes.all.current": 5 * 2**30,
            "allocated_bytes.small_pool.current": 1, "num_ooms": 1}
def memory_snapshot():
    return [{"device": 0, "blocks": [{"size": 100, "state": "active_allocated"}] * 3
             + [{"size": 70, "state": "inactive"}, {"size": 900, "state": "inactive"}]},
            {"device": 1, "blocks": [{"size": 10**9, "state": "inactive"}]}]
def allocate(size):
    for call in torch._C.observers: call(0, size, 8 * 2**30, 2**29)
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate")
""",
}
START = "import sonde\nfolder = sonde.start(collector=False)\nimport torch\nimport colorsys, json, sys\n"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FAKE.items():
        path = tmp_path / "fake" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))


def only_session(root: Path):
    (session,) = list_sessions(str(root))
    return session


CAUGHT = """
from sonde.job.torch.steps import USER, steps
torch.cuda.init()
for _ in range(40): steps.end(USER)
def train(): torch.cuda.allocate(2**30)
try: train()
except torch.cuda.OutOfMemoryError: print("went on")
"""


def test_one_line_a_row_and_a_file(run, fake, root: Path) -> None:
    done = run(START + CAUGHT)
    session = only_session(root)
    path = Path(session.folder, "oom-1.json")
    assert done.stdout == "went on\n"
    assert done.stderr == (
        "sonde: out of memory on cuda:0 in step 40: 1 GiB needed, 512 MiB of 8 GiB free,"
        f" 3 GiB in use, 5 GiB kept by torch; see {path}\n"
    )
    about = read_checked(str(path))
    assert about["largest_free_bytes"] == 900 and about["segments"]["blocks"] == 5
    assert about["segments"]["most_used"] == [{"size_bytes": 100, "blocks": 3}]
    assert [one["step"] for one in about["last_steps"]] == list(range(8, 40))
    assert any("train (" in frame for stack in about["stacks"].values() for frame in stack)
    assert about["exception"] is None  # the program went on
    (row,) = sonde.open(session.folder).query("SELECT * FROM python.torch_oom").to_pylist()
    assert (row["needed_bytes"], row["free_bytes"], row["step"]) == (2**30, 2**29, 40)
    assert (row["number"], row["file"], row["device"]) == (1, str(path), "cuda:0")


def test_if_it_ended_the_program_the_file_says_so(run, fake, root: Path) -> None:
    done = run(START + "torch.cuda.init()\ntorch.cuda.allocate(2**30)", check=False)
    assert done.returncode == 1 and done.stderr.count("sonde: ") == 1
    about = read_checked(str(Path(only_session(root).folder, "oom-1.json")))
    assert about["exception"].startswith("OutOfMemoryError: CUDA out of memory")
    assert about["traceback"][-1].startswith("allocate (")


MANY = """
torch.cuda.init()
for _ in range(50):
    try: torch.cuda.allocate(1)
    except torch.cuda.OutOfMemoryError: pass
"""


def test_a_program_that_runs_out_on_purpose_is_not_flooded(run, fake, root: Path) -> None:
    done = run(START + MANY)
    session = only_session(root)
    assert done.stderr.count("\n") == 16
    assert len(list(Path(session.folder).glob("oom-*.json"))) == 16
    rows = sonde.open(session.folder).query(
        "SELECT COUNT(*) AS n, COUNT(file) AS files FROM python.torch_oom"
    )
    assert rows.to_pylist() == [{"n": 50, "files": 16}]


QUIET = """
assert torch.cuda._queued_calls and not torch._C.observers
sonde.stop()
print(len(torch.cuda._queued_calls))
sonde.start(collector=False)
torch.cuda.init()
sonde.stop()
sonde.start(collector=False)
print(len(torch._C.observers))
sonde.stop()
try: torch.cuda.allocate(1)
except torch.cuda.OutOfMemoryError: pass
"""


def test_it_never_begins_cuda_itself_and_is_silent_when_stopped(run, fake) -> None:
    done = run(START + QUIET)
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")


def test_what_breaks_in_it_does_not_reach_the_program(run, fake, root: Path) -> None:
    code = (
        START
        + "torch.cuda.init()\ndel torch.cuda.memory_stats\n"
        + CAUGHT.replace("torch.cuda.init()", "")
    )
    done = run(code)
    assert (done.stdout, done.stderr) == ("went on\n", "")
    rows = sonde.open(only_session(root).folder).query(
        "SELECT state FROM sonde.source WHERE source = 'oom'"
    )
    assert rows.to_pylist() == [{"state": "failed"}]


REAL = """
kept = [torch.ones(2**28, device="cuda")]
before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
try: torch.empty(2**42, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError: print("went on")
print(json.dumps([before, [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]]))
torch.empty(2**42, dtype=torch.uint8, device="cuda")
"""


def test_a_real_device_that_has_no_more_memory(run, root: Path) -> None:
    need_cuda()
    done = run(START + REAL, check=False)
    session = only_session(root)
    went, sizes = done.stdout.splitlines()
    assert went == "went on" and done.returncode == 1
    before, after = json.loads(sizes)
    assert before == after  # nothing of the device was taken by us
    lines = [line for line in done.stderr.splitlines() if line.startswith("sonde: ")]
    assert len(lines) == 2 and "4 TiB needed" in lines[0]
    first, last = (read_checked(os.path.join(session.folder, f"oom-{n}.json")) for n in (1, 2))
    assert first["needed_bytes"] >= 2**42 and 0 < first["free_bytes"] < first["total_bytes"]
    assert first["allocated_bytes"] >= 2**30 and first["segments"]["blocks"] >= 1
    assert last["exception"].startswith("OutOfMemoryError: ")
