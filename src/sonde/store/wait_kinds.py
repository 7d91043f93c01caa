"""What a thread's time went to, in one word: as the kernel says, and finer by Python's frames."""

from __future__ import annotations

import os
from collections.abc import Iterable

CPU, CPU_QUEUE, OTHER = "cpu", "cpu_queue", "other"
# Functions of Python's library that are made of simpler waits (a queue of locks, the end of a child
# of sleeps), by file: the name without its class, as 3.10 has no other, and what the wait is for.
_FUNCTIONS = {
    "queue.py": {"get": "queue", "put": "queue", "join": "queue"},
    "queues.py": {"get": "queue", "put": "queue", "join": "queue"},
    "subprocess.py": {"wait": "child", "_wait": "child", "communicate": "child",
                      "_communicate": "child"},
    "process.py": {"join": "child"},
    "popen_fork.py": {"wait": "child", "poll": "child"},
}  # fmt: skip
_DEEPEST = 6  # frames of Python's library inside of such a function


def refine_wait(wait: str | None, frames: Iterable[tuple[str, str]]) -> str:
    """Return what an idle thread waits for; `frames` are its functions and files, the innermost
    first. A wait for the GIL is one wherever it happens."""
    if wait != "gil":
        for _, (func, file) in zip(range(_DEEPEST), frames, strict=False):
            known = _FUNCTIONS.get(os.path.basename(file), {})
            found = known.get(func.rpartition(".")[2])
            if found:
                return found
    return wait or OTHER
