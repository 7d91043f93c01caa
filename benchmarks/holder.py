"""A process that is being recorded and holds a million live rows; and how many a ring has."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import child

ROWS = 2**20
TABLE = "job.t"


def count_rows(folder: str, table: str) -> int:
    """Rows written to a table and whole: a benchmark that writes none is fast."""
    from sonde.session.ring import SUFFIX, Ring

    path = Path(folder, table + SUFFIX)
    if not path.exists():
        return 0
    ring = Ring(str(path))
    return ring.head - sum(ring.count(key) for key in ("dropped", "misfit", "text_lost"))


def fill() -> None:
    """Record ROWS rows, say so, and stay until stdin closes."""
    import os

    import sonde

    class T:
        step: sonde.i64
        x: sonde.f64
        name: sonde.text
        tokens: sonde.i64

    folder = sonde.start(ring_bytes="128MiB", collector="off")
    emit = sonde.table(T, TABLE)
    names = [f"phase-{i}" for i in range(16)]
    for i in range(ROWS):
        emit(i, i * 0.5, names[i & 15], i)
    print(json.dumps([os.getpid(), folder]), flush=True)
    sys.stdin.read()


@contextmanager
def hold_rows(root: str) -> Iterator[tuple[int, str]]:
    """Its pid and session folder, while it lives."""
    with child.hold(fill, root=root) as process:
        pid, folder = json.loads(process.stdout.readline())
        yield pid, folder
