"""A region and a row on every Python whose environment `make test-all` has left here."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import child
from bench_emit import time_mixed
from bench_events import time_nothing, time_reused, time_span, time_span_wall
from result import Result, interleave

ROOT = Path(__file__).resolve().parents[1]
GOALS: dict[Callable[[], float], tuple[str, float | None]] = {
    time_mixed: ("emit(): i64, f64, text, i64", 0.2),
    time_span: ("with sonde.span('x')", 0.5),
    time_span_wall: ("the same by the wall clock, the quickest of 500 batches", 0.5),
    time_reused: ("with a region that is kept", 0.5),
    time_nothing: ("a context manager in C that does nothing", None),
}
OWN = platform.python_version() + sys.abiflags


def find_others() -> dict[str, str]:
    """Versions, and their interpreters that can import sonde; not the one that runs this."""
    asked = "import platform, sonde, sys; print(platform.python_version() + sys.abiflags)"
    found = {}
    for python in sorted(ROOT.glob(".venv-3.*/bin/python"), key=lambda path: path.parts[-3]):
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[done.stdout.strip()] = str(python)
    found.pop(OWN, None)
    return found


def measure(rounds: int) -> list[Result]:
    """Microseconds per call, the empty loop taken off; the Pythons take turns."""
    pythons = {OWN: sys.executable, **find_others()}
    with child.open_root() as root:
        calls = {
            f"{way.__name__} {version}": partial(child.call, way, root=root, python=python)
            for way in GOALS
            for version, python in pythons.items()
        }
        found = interleave(rounds, calls)
    results = []
    for way, (what, goal) in GOALS.items():
        own = found[f"{way.__name__} {OWN}"]
        for version in pythons:
            samples = found[f"{way.__name__} {version}"]
            peers = {} if version == OWN else {OWN: own}
            results.append(Result(f"{what}, {version}", "µs", samples, goal, peers=peers))
    return results
