"""What seeing a call of CUDA's runtime adds to it: waits, copies and launches.

Everywhere with a pretended runtime, whose functions return at once, so that what is left is ours;
where there is a GPU, also with PyTorch's own calls, beside torch.profiler."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sysconfig
import time
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import child
from bench_cuda import has_cuda
from result import Result, find_noise

NATIVE = child.HERE.parent / "tests" / "native"
GOAL_NS = 100.0
TURNS, PRETENDED, REAL = 15, 20_000, 2_000  # calls in a turn
KINDS = ("wait", "copy", "launch")


def measure(rounds: int) -> list[Result]:
    """Nanoseconds more a call, on and off in turn within a process; a value is a process."""
    with child.open_root() as root:
        results = draw("a pretended", [
            child.call(time_pretended, str(folder), root=root)
            for folder in build_runtime(Path(root)) for _ in range(max(3, rounds))
        ])  # fmt: skip
        if find_spec("torch") is not None and child.call(has_cuda, root=root):
            results += draw("PyTorch's", [
                child.call(time_real, root=root) for _ in range(max(3, rounds))
            ])  # fmt: skip
    return results


def draw(whose: str, found: list[dict[str, list[float]]]) -> list[Result]:
    results = []
    for kind in KINDS if found else ():
        own, bare, *peer = zip(*(one[kind] for one in found), strict=True)
        peers = {"the call itself": bare} | ({"torch.profiler": peer[0]} if peer else {})
        results.append(
            Result(f"{whose} {kind} takes longer by", "ns", own, GOAL_NS, peers=peers,
                   noise=find_noise(own))
        )  # fmt: skip
    return results or [Result(f"{whose} call", "ns", [], note="no C compiler here: not measured")]


def time_block(call: Callable[[int], object], calls: int) -> float:
    """Nanoseconds of the thread's CPU for one of so many calls."""
    begin = time.thread_time_ns()
    call(calls)
    return (time.thread_time_ns() - begin) / calls


def compare(call: Callable[[int], object], calls: int, tool: object, turns: int) -> list[float]:
    """What a call takes longer with the tool, and what it takes without."""
    off, more = [], []
    for _ in range(turns + 1):
        plain = time_block(call, calls)
        with tool():
            call(64)
            more.append(time_block(call, calls) - plain)
        off.append(plain)
    return [median(more[1:]), median(off[1:])]  # the first turn warms up


@contextmanager
def watch_calls() -> object:
    from sonde.job.source_switch import switch_source

    switch_source("cuda", True)
    try:
        yield
    finally:
        switch_source("cuda", False)


# ---- a pretended runtime -------------------------------------------------------------------------


def build_runtime(folder: Path) -> list[Path]:
    """A package `torch` with one library that calls a runtime that does nothing; [] if there is no
    compiler."""
    libraries = folder / "pretended" / "torch" / "lib"
    libraries.mkdir(parents=True)
    (libraries.parent / "__init__.py").write_text(
        "import types\nversion, __version__ = types.SimpleNamespace(cuda='13.0'), '2.0'\n"
        "def compile(): pass\n"
    )
    command = [
        *shlex.split(sysconfig.get_config_var("CC") or "cc"),
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
    ]
    runtime, c10 = libraries / "libcudart.so.13", libraries / "libc10_cuda.so"
    more = [runtime, f"-Wl,-rpath,{libraries}"]
    try:
        subprocess.run([*command, runtime, NATIVE / "pretend_runtime.c"], check=True)
        subprocess.run([*command, c10, NATIVE / "pretend_c10.c", *more], check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [libraries.parent.parent]


def time_pretended(folder: str) -> dict[str, list[float]]:
    import sys

    sys.path.insert(0, folder)
    import torch

    import sonde

    library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libc10_cuda.so"))
    settings = {"source.torch": "off", "source.stack": "off", "source.cuda": "off"}
    assert sonde.start(collector="off", **settings)
    calls = dict(zip(KINDS, (library.wait_often, library.copy_often, library.launch), strict=True))
    return {kind: compare(call, PRETENDED, watch_calls, TURNS) for kind, call in calls.items()}


# ---- PyTorch's own calls -------------------------------------------------------------------------


def time_real() -> dict[str, list[float]]:
    import torch

    import sonde

    numbers, pinned = torch.ones(16, device="cuda"), torch.ones(16).pin_memory()
    stream = torch.cuda.current_stream()

    def wait(times: int) -> None:
        for _ in range(times):
            stream.synchronize()

    def copy(times: int) -> None:
        for _ in range(times):
            numbers.copy_(pinned, non_blocking=True)
        stream.synchronize()

    def launch(times: int) -> None:
        for _ in range(times):
            numbers.add_(1)
        stream.synchronize()

    settings = {"source.torch": "off", "source.stack": "off", "source.cuda": "off"}
    assert sonde.start(collector="off", **settings)
    found = {}
    for kind, call in zip(KINDS, (wait, copy, launch), strict=True):
        call(REAL)
        own, bare = compare(call, REAL, watch_calls, TURNS)
        profiled, _bare = compare(call, REAL, watch_kernels, 2)
        found[kind] = [own, bare, profiled]
    return found


@contextmanager
def watch_kernels() -> object:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        yield
