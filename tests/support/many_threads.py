"""A program whose threads all write a row at once, and whether every row is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import sonde

PROGRAM = """
import sys, threading, sonde
class Point:
    x: int
emit = sonde.table(Point)
print(sonde.start(collector="off"))
threading.stack_size(256 * 1024)
go, threads = threading.Event(), []
def work(n):
    go.wait()
    emit(n)
try:
    for n in range(int(sys.argv[1])):
        threads.append(threading.Thread(target=work, args=(n,)))
        threads[-1].start()
except RuntimeError:
    threads.pop()          # this machine allows no more at once
go.set()
for thread in threads:
    thread.join()
print(len(threads))
"""


def check_threads(count: int, root: Path) -> int:
    """Return how many threads there were; fail if a row is missing that was not counted as lost."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(count)], capture_output=True, text=True, check=True,
        env={**os.environ, "SONDE_DIR": str(root)},
    )  # fmt: skip
    folder, alive = done.stdout.split()
    recording = sonde.open(folder)
    (rows,) = recording.query(
        "SELECT COUNT(*) AS n, COUNT(DISTINCT x) AS different FROM job.point"
    ).to_pylist()
    (loss,) = recording.query(
        "SELECT dropped FROM sonde.loss WHERE table_name = 'job.point'"
    ).to_pylist()
    assert rows["n"] == rows["different"] == int(alive) - loss["dropped"], (rows, loss, alive)
    assert int(alive) > count / 10
    return int(alive)
