"""Stacks under stress: `python tests/stress/stacks.py [SECONDS] [INTERVAL]`, for the Python it runs on.

A quarter of the time is for readings that are interrupted in the middle, of a program that does nothing but
short calls. What that part tells is whether a stack is seen that never existed: how many are torn, and given
up, depends on how often the two threads really run side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sonde.session import Session, stack_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import native_tools, oracle


def run(seconds: float, interval: str, *more: str, **env: str) -> Session:
    """Record the oracle; its session. Raises if it did not end well."""
    command = [sys.executable, str(Path(oracle.__file__)), str(seconds), interval, *more]
    done = subprocess.run(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=True,
        timeout=600,
    )  # fmt: skip
    return Session(done.stdout.strip())


def run_interrupted(seconds: float) -> Session:
    """Record the fastest part of the oracle, with readings that pause in the middle."""
    with tempfile.TemporaryDirectory() as folder:
        library = native_tools.make_slow_reads(Path(folder))
        return run(seconds, "50us", "chains", LD_PRELOAD=str(library))


def list_stacks(session: Session) -> list[tuple[list[tuple[str, str, int]], int]]:
    """Every sampled stack, with its samples."""
    nodes = stack_table.read_nodes(session)
    found = []
    for place in range(len(nodes)):
        if nodes.samples[place]:
            frames = [nodes.frame(at) for at in nodes.walk(place)]
            found.append(([(f.func, f.file, f.line) for f in frames], nodes.samples[place]))
    return found


def read_sums(session: Session) -> dict[str, int]:
    """The last row of python.sampling."""
    from sonde.store.recording import Recording

    rows = Recording([session]).query("SELECT * FROM python.sampling ORDER BY t_ns DESC LIMIT 1")
    return rows.to_pylist()[0]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    session = run(seconds * 3 / 4, sys.argv[2] if len(sys.argv) > 2 else "100us")
    sound = report(session, seconds * 3 / 4)
    print("readings that pause in the middle, every 50 us:")
    return 0 if report(run_interrupted(seconds / 4), seconds / 4) and sound else 1


def report(session: Session, seconds: float) -> bool:
    """Print what was seen; did every stack exist?"""
    found = list_stacks(session)
    faults, sums = oracle.find_faults(found), read_sums(session)
    samples = sum(count for _frames, count in found)
    keys = ("due", "taken", "samples", "torn", "cut", "stacks", "stacks_lost", "threads")
    print(f"Python {sys.version.split()[0]}:", *(f"{key} {sums[key]:,}" for key in keys))
    print(f"  torn {sums['torn'] / (sums['samples'] + sums['torn']):.3%}, "
          f"CPU {sums['cpu_ns'] / 1e9 / seconds:.1%} of a core, "
          f"stacks that never existed: {sum(faults.values())} of {samples:,} samples")  # fmt: skip
    for frames, count in found:
        if oracle.find_fault(frames):
            shown = " < ".join(f"{func}:{line}" for func, _file, line in frames[:8])
            print(f"  {count} x {len(frames)} frames: {shown} … {frames[-1][0]}")
    for fault, count in sorted(faults.items(), key=lambda entry: -entry[1])[:10]:
        print(f"  {count} x {fault}")
    return not faults


if __name__ == "__main__":
    sys.exit(main())
