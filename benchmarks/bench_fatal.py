"""How much longer a recorded program takes to die of a fault, with the last sample and without."""

from __future__ import annotations

import ctypes
import subprocess
import time

import child
import layout
from result import Result, interleave

DEATHS = 5
THREADS = 8


def measure(rounds: int) -> list[Result]:
    """Milliseconds from the fault to the end of the process, as its parent sees it."""
    with child.open_root() as root:
        found = interleave(
            max(2, rounds) * DEATHS,
            {
                "on": lambda: time_death(root, "on"),
                "off: stack.fatal=off": lambda: time_death(root, "off"),
            },
        )
    own = found.pop("on")
    return [
        Result(f"from a fault to the end of a program of {THREADS} threads", "ms", own, peers=found)
    ]


def time_death(root: str, fatal: str) -> float:
    process = subprocess.Popen(
        child.name_call(die, fatal),
        env=child.make_environment(root, **layout.draw()),
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    begin = float(process.stdout.readline())
    process.wait(child.TIMEOUT_S)
    end = time.monotonic()
    process.stdout.close()
    return (end - begin) * 1e3


def die(fatal: str) -> None:
    """Tell the time, then read memory that is not there."""
    import threading

    import sonde

    assert sonde.start(collector="off", stack_fatal=fatal)
    for _ in range(THREADS - 1):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    time.sleep(0.2)
    print(time.monotonic(), flush=True)
    ctypes.string_at(8)
