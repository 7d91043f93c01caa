"""What the scenarios share: a small model, work that takes CPU time, and an end after so long.

Each scenario is a real program with one planted cause. `RULE` is the rule that must fire (`places`:
where the time went must tell it), `CAUSE` words of its title, or of what is told of the place, `ALSO` rules that are right to fire beside it, `OPTIONS` settings of the
recording, `LIMITS` limits that are smaller than the defaults because a test is shorter than a job.
`LINE` is the function that the finding must name. With `TWIN` the program can also be its own fixed
twin, `NAME+fixed`, in which nothing may be worth a warning. `NEEDS` is a package without which it is not
run. With `GPU` the collector finds a GPU that is not there, see show_gpu()."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0
FIXED = "fixed" in sys.argv  # be the twin without the cause


def burn(seconds: float) -> None:
    """Use so much CPU time in Python: on a busy machine it takes longer, as all else does."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def use_cores(count: int) -> None:
    """Be a job that may use so many processors, whatever the machine has."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def until_over() -> Iterator[int]:
    """Count steps for as long as the scenario lasts."""
    end, step = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        yield step
        step += 1


def end_later(after_s: float = SECONDS) -> None:
    """Have another process end this one and its children, as somebody does in the end: a thread of its own
    would not stand still."""
    if os.fork() == 0:
        time.sleep(after_s)
        parent = os.getppid()
        others = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in (parent, *map(int, others)):
            if pid != os.getpid():
                os.kill(pid, 9)
        os._exit(0)


def show_gpu(util_pct: float) -> None:
    """Have the collector find a GPU that is so busy, and three quarters full."""
    folder = Path(os.environ["SONDE_NVML"])
    gpu = {"util_pct": util_pct, "memory_used_bytes": 60 * 2**30, "power_w": 600.0,
           "processes": [(os.getpid(), 60 * 2**30)]}  # fmt: skip
    step = {"at": 0, "gpus": [gpu]}
    hidden = folder / "script.new"
    hidden.write_text(json.dumps({"begun_s": time.monotonic(), "repeat_s": 0, "steps": [step]}))
    hidden.rename(folder / "script.json")
