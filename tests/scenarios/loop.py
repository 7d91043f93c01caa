"""What the scenarios share: a small model, work that takes CPU time, and an end after so long.

Each scenario is a real program with one planted cause. `RULE` is the rule that must fire, `CAUSE`
words of its title, `OPTIONS` settings of the recording, `LIMITS` limits that are smaller than the
defaults because a test is shorter than a job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 7.0


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
