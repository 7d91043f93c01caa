"""One row from C with its clock: alone, and from several threads at once."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from functools import partial
from pathlib import Path

import child
from result import Result, interleave

ROWS = 1_000_000
THREADS = min(4, os.cpu_count() or 1)
CORE = child.HERE.parent / "src" / "sonde" / "_core"


def measure(rounds: int) -> list[Result]:
    """Nanoseconds per append, the clock included."""
    with child.open_root() as root:
        driver = build_driver(root)
        calls = {}
        if driver:
            calls["one"] = partial(run_driver, driver, root, 1, 0)
            calls["several"] = partial(run_driver, driver, root, THREADS, 0)
            calls["clock"] = partial(run_driver, driver, root, 1, 1)
        found = interleave(rounds, calls)
    clock = {"clock_gettime alone": found.get("clock", [])}
    note = "" if driver else "no C compiler here: not measured"
    return [
        Result("C append: 1 thread", "ns", found.get("one", []), 100, peers=clock, note=note),
        Result(
            f"C append: {THREADS} threads at full speed, one ring",
            "ns",
            found.get("several", []),
            100,
            note=note or "per append and thread; every append moves the ring's head between cores",
        ),
    ]


def build_driver(root: str) -> str | None:
    """The C program, built as the extension is; None without a compiler or the sources."""
    path = str(Path(root) / "append")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    sources = [str(CORE / "format" / name) for name in ("ring.c", "checksum.c", "clock.c")]
    source = str(child.HERE / "append.c")
    options = ["-std=gnu11", "-O2", "-pthread", f"-I{CORE}", "-o", path]
    try:
        subprocess.run([*compiler, *options, source, *sources], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return path


def run_driver(driver: str, root: str, threads: int, field: int) -> float:
    ring = str(Path(root) / "append.ring")
    words = child.run([driver, ring, str(threads), str(ROWS)], root).split()
    # A thread that loses its core inside a slot is lapped by the others: a row or two, not more.
    assert int(words[2]) < ROWS / 1000, f"{words[2]} rows dropped: those cost less"
    return float(words[field])
