"""What a recorded program pays for children and subinterpreters, beside the same one bare."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from statistics import median

import child
from result import Result, find_noise

_TIMES = {
    "fork": 200,
    "fork in a job of 64 MB": 100,
    "work": 20,
    "start": 20,
    "interpreter": 20,
}
_TORCH_TIMES = {
    "torch fork": 20,
    "torch forty": 1,
}  # with NumPy, PyTorch and an array of 200 MB
_WORK_S = 0.02
_NAMES = {
    "fork": "fork and wait",
    "fork in a job of 64 MB": "fork and wait, in a job of 64 MB",
    "work": "a forked child that works for 20 ms",
    "start": "a Python child: python -c pass",
    "interpreter": "a subinterpreter",
    "torch fork": "fork and wait, in a job with PyTorch",
    "torch forty": "40 children of multiprocessing at once, in a job with PyTorch",
}


def measure(rounds: int) -> list[Result]:
    """CPU time of the program and its children; the bare one and the recorded one in turn."""
    found: dict[tuple[str, bool], list[float]] = {}
    whats = [*_TIMES, *(_TORCH_TIMES if importlib.util.find_spec("torch") else ())]
    with child.open_root() as root:
        for _ in range(3 * rounds):
            for what in whats:
                for is_recorded in (False, True):
                    words = child.name_call(take_time, what, is_recorded)
                    text = child.run(words, root, SONDE=str(int(is_recorded)))
                    found.setdefault((what, is_recorded), []).append(float(text))
    return [compare(what, found[what, False], found[what, True]) for what in whats]


def compare(what: str, bare: list[float], recorded: list[float]) -> Result:
    """How much more the recorded one took, round by round."""
    more = [100 * (ours / plain - 1) for ours, plain in zip(recorded, bare, strict=True)]
    return Result(
        f"{_NAMES[what]}: CPU time added",
        "%",
        more,
        10,
        noise=find_noise(more),
        note=f"{median(bare):.2f} ms bare, {median(recorded):.2f} ms recorded",
    )


def take_time(what: str, is_recorded: bool) -> float:
    """Milliseconds of CPU time that one of these takes; called in a fresh Python."""
    import sonde

    assert (sonde.session() is not None) == is_recorded
    if what == "fork in a job of 64 MB":
        kept = [bytes([number % 251]) * 4096 for number in range(64 * 256)]
        assert kept
    if what.startswith("torch"):
        import numpy
        import torch

        kept = numpy.ones(25_000_000), torch.ones(1)
    once = {
        "work": work, "start": start, "interpreter": interpret, "torch forty": fork_forty,
    }.get(what, fork)  # fmt: skip
    times = {**_TIMES, **_TORCH_TIMES}[what]
    once()
    time.sleep(0.1)
    begin = read_cpu()
    for _ in range(times):
        once()
    return (read_cpu() - begin) / times * 1e3


def read_cpu() -> float:
    """Seconds of CPU time of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def fork() -> None:
    """A child that ends at once."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def fork_forty() -> None:
    """Forty children that do nothing, as programs start them."""
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=str) for _ in range(40)]
    for one in children:
        one.start()
    for one in children:
        one.join()


def work() -> None:
    """A child that works for a while."""
    pid = os.fork()
    if pid == 0:
        end = time.process_time() + _WORK_S
        while time.process_time() < end:
            pass
        os._exit(0)
    os.waitpid(pid, 0)


def start() -> None:
    """A Python program that does nothing."""
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def interpret() -> None:
    """A subinterpreter that does nothing."""
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        import _interpreters as interpreters
    one = interpreters.create()
    interpreters.run_string(one, "pass")
    interpreters.destroy(one)
