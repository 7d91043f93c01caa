"""Proofs of sonde.profiler that take long: python tests/stress/profiler.py

Fifty profiles in one process; a hundred random moments of a continuous dump, or as many as fit into
a minute, then SIGKILL; a full disk (needs the right to mount a tmpfs, else that part is left out and
said so)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CYCLES, LOOKS, LOOKS_S = 50, 100, 60

CYCLE = """
import json, os, sys
from sonde import profiler
for i in range(int(sys.argv[1])):
    profiler.set_config(filename=f"cycle{i}.json", continuous_dump=i % 2 == 0, dump_period=0.05,
                        aggregate_stats=True)
    profiler.set_state("run")
    domain = profiler.Domain("D")
    for j in range(100):
        with domain.new_task(f"task {i}"): pass
        with domain.new_frame(f"frame {i}"): pass
        domain.new_marker(f"marker {i}").mark()
    domain.new_counter("counter", i)
    if i % 3 == 0:
        profiler.dumps()
    profiler.set_state("stop")
    profiler.dump()
    sums = json.loads(profiler.dumps(format="json"))
    assert list(sums["Time"]["D"]) == [f"task {i}"] and sums["Time"]["D"][f"task {i}"]["Count"] == 100
"""
FOREVER = """
import sys, time
from sonde import profiler
profiler.set_config(filename=sys.argv[1], dump_period=0.05)
profiler.set_state("run")
domain = profiler.Domain('hostile "name"\\n')
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    with domain.new_task(f"task {turn % 100}"), profiler.Event("event"):
        domain.new_counter("turn", turn)
        time.sleep(float(sys.argv[2]))
    domain.new_marker("end").mark()
"""


def load(path: Path) -> list[dict[str, object]]:
    found = json.loads(path.read_bytes())
    return found["traceEvents"] if isinstance(found, dict) else found


def run_cycles(folder: Path) -> None:
    begun_s = time.monotonic()
    subprocess.run([sys.executable, "-c", CYCLE, str(CYCLES)], cwd=folder, check=True)
    for i in range(CYCLES):
        names = [str(event["name"]) for event in load(folder / f"cycle{i}.json")]
        for kind in ("task", "frame", "marker"):
            assert names.count(f"{kind} {i}") == 100, (i, kind, names.count(f"{kind} {i}"))
            assert not [n for n in names if n.startswith(f"{kind} ") and n != f"{kind} {i}"]
        assert names.count("counter") == 1
    print(f"{CYCLES} cycles: {CYCLES} files, nothing lost or repeated; "
          f"{time.monotonic() - begun_s:.1f} s")  # fmt: skip


def run_looks(folder: Path) -> None:
    path, dice = folder / "live.json", random.Random(1)
    with subprocess.Popen(
        [sys.executable, "-c", FOREVER, str(path), "0.0002"], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        while not path.exists():
            time.sleep(0.01)
        # The file grows while it is read: on a busy machine each look takes longer than the last.
        sizes, looks, deadline = set(), 0, time.monotonic() + LOOKS_S
        while looks < LOOKS and time.monotonic() < deadline:
            sizes.add(len(load(path)))
            looks += 1
            time.sleep(dice.random() / 10)
        job.send_signal(signal.SIGKILL)
        job.wait()
    time.sleep(3)
    assert len(load(path)) >= max(sizes)
    print(f"{looks} looks: every file sound; {len(sizes)} sizes, up to {max(sizes):,} events; "
          f"after SIGKILL {len(load(path)):,}")  # fmt: skip


def run_full_disk(folder: Path) -> None:
    small = folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)]).returncode:
        print("full disk: left out, no right to mount")
        return
    try:
        path = small / "live.json"
        with subprocess.Popen(
            [sys.executable, "-c", FOREVER, str(path), "0.002"], stdout=subprocess.PIPE, text=True
        ) as job:
            assert job.stdout is not None and job.stdout.readline() == "ready\n"
            # Half of it is the old file while the new one is written.
            deadline, looks, most = time.monotonic() + 60, 0, 0
            while time.monotonic() < deadline:
                if path.exists():
                    most, looks = max(most, len(load(path))), looks + 1
                time.sleep(0.2)
            assert job.poll() is None
            job.kill()
        time.sleep(3)
        log = next((folder / "sonde").glob(f"*-{job.pid}-*")) / "log"
        said = log.read_text().count("No space left")
        print(f"full disk: sound at {looks} looks and at the end, {len(load(path)):,} events; "
              f"{said} refreshes found no room")  # fmt: skip
    finally:
        subprocess.run(["umount", str(small)], check=True)


def main() -> None:
    parts = sys.argv[1:] or ["cycles", "looks", "disk"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SONDE_DIR"] = str(folder / "sonde")
        for part, run in (("cycles", run_cycles), ("looks", run_looks), ("disk", run_full_disk)):
            if part in parts:
                run(folder)
        time.sleep(1)


if __name__ == "__main__":
    main()
