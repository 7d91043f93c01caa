"""CPU seconds of whole commands: a minute of a program, two of them, a job of many workers.

    python benchmarks/bench_commands.py TARGET [ROUNDS]     # of any recording in $SONDE_DIR

A day is made by day.py, and then measured like that."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import child
from result import Result, interleave

SECONDS, EPOCHS, WORKERS = 62, 22, 8
COMMANDS = (
    ("advise",), ("top", "--once"), ("tree",), ("stacks",), ("ps",),
)  # fmt: skip
# Goals, in seconds of CPU: of a minute, of two of them, and of the job.
_MINUTE = {"advise": 2.0, "tree": 1.0, "stacks": 0.1, "ps": 0.3}
_COMPARE = 2.0
_OF_JOB = {"advise": 5.0}
_JOB = "pool"
_PROGRAM = """
import json, queue, sqlite3, sys, threading, time

waiting = queue.Queue(maxsize=50)
end = time.time() + float(sys.argv[1])

def query(table, keys):
    return [table.execute("SELECT v FROM t WHERE k = ?", (key,)).fetchone() for key in range(keys)]

def serve():
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE t(k INTEGER PRIMARY KEY, v)")
    table.executemany("INSERT INTO t VALUES (?, ?)", [(key, key * key) for key in range(500)])
    while time.time() < end:
        json.loads(waiting.get())
        json.dumps(query(table, int(sys.argv[2])))
        time.sleep(0.01)

for _ in range(3):
    threading.Thread(target=serve, daemon=True).start()
while time.time() < end:
    waiting.put(json.dumps(list(range(200))))
    time.sleep(0.004)
"""
# A pool that is made anew for each epoch, as many loaders of data are.
_POOL = """
import json, multiprocessing, sys, time

def work(length):
    end = time.time() + 0.02
    while time.time() < end:
        json.dumps(list(range(length)))
    time.sleep(0.03)

if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        with multiprocessing.get_context("fork").Pool(int(sys.argv[2])) as pool:
            pool.map(work, [200] * 200, chunksize=2)
            pool.close()
            pool.join()
"""


def measure(rounds: int) -> list[Result]:
    """CPU seconds of the commands, with those of their children."""
    with child.open_root() as root:
        minutes = [_record(root, _PROGRAM, SECONDS, rows) for rows in (60, 200)]
        _record(root, _POOL, EPOCHS, WORKERS, SONDE_JOB=_JOB)
        _wait_for_seals(root)
        calls = {
            **_make_calls(root, minutes[0], "a minute of one process"),
            "compare, two of a minute": partial(time_cpu, ["compare", *minutes], root),
            **_make_calls(root, _JOB, f"a job of {EPOCHS * WORKERS} worker processes"),
        }
        found = interleave(max(5, rounds), calls)
    goals = {
        **{f"{name}, a minute of one process": goal for name, goal in _MINUTE.items()},
        "compare, two of a minute": _COMPARE,
        **{f"{name}, a job of {EPOCHS * WORKERS} worker processes": goal
           for name, goal in _OF_JOB.items()},
    }  # fmt: skip
    return [
        Result(f"sonde {what}, CPU", "s", samples, goals.get(what))
        for what, samples in found.items()
    ]


def _make_calls(root: str, target: str, what: str) -> dict[str, partial[float]]:
    found = {}
    for name, *more in COMMANDS:
        words = [name, *more] if name == "ps" else [name, target, *more]
        found[f"{name}, {what}"] = partial(time_cpu, words, root)
    return found


def _record(root: str, program: str, *words: object, **more: str) -> str:
    """Record a program to its end; return its pid."""
    path = Path(root) / "program.py"
    path.write_text(program)
    running = subprocess.Popen([sys.executable, str(path), *map(str, words)],
                               env=child.make_environment(root, SONDE="1", **more))  # fmt: skip
    assert running.wait(timeout=600) == 0
    return str(running.pid)


def _wait_for_seals(root: str) -> None:
    deadline = time.monotonic() + 120
    folders = [path.parent for path in Path(root).glob("*/meta.json")]
    while not all((folder / "sealed.json").exists() for folder in folders):
        assert time.monotonic() < deadline, "the sessions are not sealed"
        time.sleep(0.2)


def time_cpu(words: Sequence[str], root: str) -> float:
    """Return the CPU seconds of a command that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "sonde", *words], check=True, capture_output=True,
                   env=child.make_environment(root), timeout=600)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    place, target = os.environ["SONDE_DIR"], sys.argv[1]
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    for what, samples in interleave(turns, _make_calls(place, target, target)).items():
        print(f"{what}: {median(samples):.2f} s of CPU")
