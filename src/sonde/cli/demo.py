"""Record a small job and show what can be asked of it: try me."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from sonde import config
from sonde.cli import _draw
from sonde.query import open_recording

_JOB = '''
import random, time
from dataclasses import dataclass
import sonde

@dataclass
class Batch:
    """One training batch of the demo."""
    step: int
    loss: float
    phase: str

emit = sonde.table(Batch)
deadline = time.monotonic() + SECONDS
step = 0
while time.monotonic() < deadline:
    nodes = [[i] for i in range(20_000)]
    for node in nodes:
        node.append(node)                       # cycles: work for the garbage collector
    for phase in ("forward", "backward"):
        emit(step, 2.0 / (1 + step) ** 0.5 + random.random() / 50, phase)
    step += 1
'''

_QUERIES = (
    ("The job's own table: one dataclass, one call per row",
     "SELECT phase, COUNT(*) AS batches, ROUND(AVG(loss), 4) AS mean_loss FROM job.batch "
     "GROUP BY phase ORDER BY phase"),
    ("Where the time went: stacks of all threads, every 10 ms",
     "SELECT func, lineno, ROUND(SUM(wall_ns) / 1e9, 2) AS self_s FROM python.stack_sample "
     "JOIN python.frame USING (stack) WHERE depth = 0 GROUP BY ALL ORDER BY self_s DESC LIMIT 5"),
    ("What the garbage collector cost, by generation",
     "SELECT generation, COUNT(*) AS pauses, ROUND(SUM(dur_ns) / 1e6, 1) AS total_ms, "
     "ROUND(MAX(dur_ns) / 1e6, 2) AS longest_ms FROM python.gc_pause GROUP BY 1 ORDER BY 1"),
    ("The process, as the collector saw it from outside",
     "SELECT ts, ROUND(user_pct + system_pct, 1) AS cpu_pct, rss_bytes // 1048576 AS rss_mib, "
     "threads FROM system.process ORDER BY ts"),
    ("What is on, and what was lost",
     "SELECT table_name, written, kept, dropped, overwritten FROM sonde.loss ORDER BY table_name"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="default: %(default)g")


def run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_JOB.replace("SECONDS", str(args.seconds)))
        print(f"$ sonde run train.py        (a small job, {args.seconds:g} s)")
        job = subprocess.Popen(
            [sys.executable, path], env=config.make_child_environment(SONDE="1"), cwd=folder
        )
        _show_progress(job, args.seconds)
        if job.wait() != 0:
            return 1
    recording = open_recording(job.pid)
    for title, sql in _QUERIES:
        print(f'\n{title}\n$ sonde query {job.pid} "{sql}"')
        _draw.draw_arrow(recording.query(sql), sys.stdout)
    print(
        f"\nIt is all in {recording.sessions[0].folder}; next: sonde ps, sonde tables {job.pid}, "
        f"sonde export {job.pid} --to flamegraph"
    )
    return 0


def _show_progress(job: subprocess.Popen[bytes], seconds: float) -> None:
    start = time.monotonic()
    while job.poll() is None and sys.stdout.isatty():
        done = min(1.0, (time.monotonic() - start) / (seconds + 0.2))
        sys.stdout.write(f"\r[{'#' * int(30 * done):<30}] recording pid {job.pid}")
        sys.stdout.flush()
        time.sleep(0.1)
    if sys.stdout.isatty():
        sys.stdout.write("\r" + " " * 60 + "\r")
