"""python.cuda_call: what torch asks CUDA's runtime for, seen in the slots of torch's libraries."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import sonde
from sonde.session import list_sessions
from support.needs import need_cuda
from support.places import NATIVE

TORCH = """
import ctypes, os, types
version = types.SimpleNamespace(cuda="13.0")
__version__ = "2.0"
lib = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "libc10_cuda.so"))
def item(us):
    return lib.wait_for(ctypes.c_long(us))
def copy(start, size, way, us):
    return lib.copy(*map(ctypes.c_long, (start, size)), way, ctypes.c_long(us))
def compile(): pass
"""
PROGRAM = """
import os, sonde, torch
def read_loss():
    return torch.item(200)
def work():
    first = [read_loss() for _ in range(3)]
    for _ in range(50):
        torch.item(0)
    copies = [torch.copy(0x1001, 1 << 20, 1, 300), torch.copy(0x1000, 1 << 20, 2, 300),
              torch.copy(0x1000, 8, 3, 0)]
    torch.lib.allocate(4096)
    return first, copies, torch.lib.launch(1000)
bare = work()
sonde.start(collector="off", **{"source.torch": "off"})
seen = work()
if os.fork() == 0:  # the slots are still ours there, and lead to the runtime
    os._exit(work() != bare)
status = os.waitpid(-1, 0)[1]
sonde.stop()
print(bare == seen == work(), status)
sonde.start(collector="off", **{"source.torch": "off"})
read_loss()
sonde.stop()
"""

DEVICE = """
import os, sonde, torch, warnings
warnings.simplefilter("ignore")
numbers = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
pinned, plain = torch.ones(1 << 20).pin_memory(), torch.ones(1 << 20)
def wait():
    for _ in range(5):
        torch.cuda.synchronize()
def read():
    return [float(numbers[at]) for at in range(5)]
def copy():
    return float((pinned.to("cuda", non_blocking=True) + plain.to("cuda")).sum())
def replay():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = numbers * 2
    graph.replay()
    return float(doubled.sum())
def work():
    wait()
    return read(), copy(), replay()
def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(len([bytes(100) for _ in range(10_000)]) % 100 + 7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
bare = work()
sonde.start(collector="off", **{"source.torch": "off"})
seen, child = work(), fork()
again = work()
sonde.stop()
print(bare == seen == again == work(), child)
"""


@pytest.fixture
def pretended(tmp_path: Path) -> Path:
    """A folder with a package `torch` that has one library, which calls a pretended runtime."""
    libraries = tmp_path / "torch" / "lib"
    libraries.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o"]
    if "ccache" in command[0]:
        command[:1] = command[0].split()
    runtime = libraries / "libcudart.so.13"
    subprocess.run([*command, runtime, NATIVE / "pretend_runtime.c"], check=True)
    c10 = [
        libraries / "libc10_cuda.so",
        NATIVE / "pretend_c10.c",
        runtime,
        f"-Wl,-rpath,{libraries}",
    ]
    subprocess.run([*command, *c10], check=True)
    return tmp_path


def test_waits_copies_and_launches_are_seen_and_nothing_changes(run, root, pretended) -> None:
    done = run(PROGRAM, PYTHONPATH=str(pretended))
    assert done.stdout == "True 0\n"
    first, second = sorted(list_sessions(str(root)), key=lambda one: one.folder)
    query = sonde.open(first.folder).query
    source = query("SELECT state, detail FROM sonde.source WHERE source = 'cuda'").to_pylist()
    assert source[0] == {"state": "off", "detail": None}  # it ended as it should
    waits = query(
        "SELECT call, func, file, lineno, stream, device, calls, dur_ns >= 200000 AS is_long"
        " FROM python.cuda_call WHERE kind = 'synchronize' AND stream IS NOT NULL AND stream > 0"
    ).to_pylist()
    assert len(waits) == 3
    assert {tuple(sorted(row.items())) for row in waits} == {tuple(sorted({
        "call": "cudaStreamSynchronize", "func": "read_loss", "file": waits[0]["file"], "lineno": 4,
        "stream": 200, "device": "cuda:3", "calls": 1, "is_long": True,
    }.items()))}  # fmt: skip
    short = query(
        "SELECT DISTINCT func FROM python.cuda_call WHERE call LIKE '%Synchronize' AND calls = 16"
    ).to_pylist()
    assert short == [{"func": "work"}]  # of 50; on a busy machine some of them take long
    sums = "SELECT SUM(calls) AS calls, CAST(SUM(bytes) AS BIGINT) AS bytes FROM python.cuda_call "
    assert query(sums + "WHERE kind = 'synchronize'").to_pylist()[0]["calls"] == 53
    assert query(sums + "WHERE kind = 'launch' AND dur_ns IS NULL").to_pylist()[0]["calls"] == 1000
    assert query(sums + "WHERE kind = 'allocate'").to_pylist()[0] == {"calls": 1, "bytes": 4096}
    copies = query(
        "SELECT direction, pinned, bytes FROM python.cuda_call WHERE kind = 'copy' ORDER BY 1"
    ).to_pylist()
    assert [tuple(row.values()) for row in copies] == [
        ("device to device", None, 8),
        ("device to host", False, 1 << 20),
        ("host to device", True, 1 << 20),
    ]
    again = sonde.open(second.folder).query("SELECT func FROM python.cuda_call").to_pylist()
    assert again == [{"func": "read_loss"}]  # what was given back can be taken again


def test_waits_and_copies_of_a_real_device_are_seen_beside_graphs_and_forks(
    run_torch, root
) -> None:
    need_cuda()
    assert run_torch("import torch\n" + DEVICE).stdout.splitlines()[-1] == "True 7"
    first = min(list_sessions(str(root)), key=lambda session: session.start_wall_ns)
    query = sonde.open(first.folder).query
    waits = query(
        "SELECT call, SUM(calls)::INT AS calls FROM python.cuda_call WHERE kind = 'synchronize'"
        " GROUP BY 1"
    ).to_pylist()  # short ones are added up, so not all have their function
    calls = {row["call"]: row["calls"] for row in waits}
    assert calls["cudaDeviceSynchronize"] >= 10 and calls["cudaStreamSynchronize"] >= 10
    copies = query(
        "SELECT pinned, SUM(bytes)::INT AS bytes FROM python.cuda_call"
        " WHERE kind = 'copy' AND direction = 'host to device' GROUP BY 1 ORDER BY 1"
    ).to_pylist()  # of both ways of copying, twice 4 MiB each, and little else
    assert [(row["pinned"], row["bytes"] >> 22) for row in copies] == [(False, 2), (True, 2)]
