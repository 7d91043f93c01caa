"""Record a small job and show what can be asked of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec

import sonde.demo
from sonde import environ
from sonde.cli import _options, _table, modules, report
from sonde.cli._terminal import send
from sonde.store.recording import Recording, open_recording

GROUP = "learn"
EXAMPLES = (
    "sonde demo",
    "sonde demo --duration 20s --plain",
)
_TRAIN = os.path.join(next(iter(sonde.demo.__path__)), "train.py")  # needs torch

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

_OWN = (
    ("The job's own table: one dataclass, one call per row",
     "SELECT phase, COUNT(*) AS batches, ROUND(AVG(loss), 4) AS mean_loss FROM job.batch "
     "GROUP BY phase ORDER BY phase"),
)  # fmt: skip
_STEPS = (
    ("Every step, and where its time went",
     "SELECT step, ROUND(dur_ns / 1e6, 1) AS step_ms, ROUND(input_wait_ns / 1e6, 1) AS input_ms, "
     "ROUND(forward_ns / 1e6, 1) AS forward_ms, ROUND(backward_ns / 1e6, 1) AS backward_ms, "
     "ROUND(optimizer_ns / 1e6, 1) AS optimizer_ms "
     "FROM python.torch_step ORDER BY step DESC LIMIT 5"),
)  # fmt: skip
_QUERIES = (
    ("Where the time went: stacks of all threads, every 10 ms",
     "SELECT func, lineno, ROUND(SUM(wall_ns) / 1e9, 2) AS self_s FROM python.stack_sample "
     "JOIN python.frame USING (stack) WHERE depth = 0 GROUP BY ALL ORDER BY self_s DESC LIMIT 5"),
    ("What the garbage collector cost, by generation",
     "SELECT generation, COUNT(*) AS pauses, ROUND(SUM(dur_ns) / 1e6, 1) AS total_ms, "
     "ROUND(MAX(dur_ns) / 1e6, 2) AS longest_ms FROM python.gc_pause GROUP BY 1 ORDER BY 1"),
    ("The process, as the collector saw it from outside",
     "SELECT ts, ROUND(user_pct + system_pct, 1) AS cpu_pct, rss_bytes // 1048576 AS rss_mib, "
     "threads FROM system.process WHERE depth = 0 ORDER BY ts"),
    ("What is on, and what was lost",
     "SELECT table_name, written, kept, dropped, overwritten FROM sonde.loss ORDER BY table_name"),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_span(parser, "-d", "--duration", what="how long the job runs", default="5s")
    parser.add_argument("--plain", action="store_true",
                        help="record a job without PyTorch even if that is installed")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    trains = not args.plain and find_spec("torch") is not None
    with tempfile.TemporaryDirectory() as folder:
        path = _TRAIN
        if not trains:
            path = os.path.join(folder, "train.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(_JOB.replace("SECONDS", str(args.duration)))
        what = "a small transformer" if trains else "a small job"
        print(f"$ sonde run train.py        ({what}, {args.duration:g} s)")
        output = os.path.join(folder, "output.txt")
        pid = _record([path, f"--seconds={args.duration}"], args.duration, folder, output)
        if pid is None:
            return 1
        with open(output, encoding="utf-8") as file:
            print(*file.readlines()[-1:], end="")
    recording = open_recording(pid)
    if trains:
        _show_modules(pid)
    _ask(recording, pid, (*(_STEPS if trains else _OWN), *_QUERIES))
    print(f"\nIt is all in {recording.sessions[0].folder}; next: sonde ps, sonde tables {pid}, "
          f"sonde export {pid} --to flamegraph")  # fmt: skip
    _report(recording, pid)
    return 0


def _report(recording: Recording, pid: int) -> None:
    """Write the page of the job as a file beside its recording, and say how to open it."""
    path = os.path.join(recording.sessions[0].folder, "report.html")
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    print(f"\nAll of it on one page\n$ sonde report {pid} -o report.html")
    report.run(parser.parse_args([str(pid), "-o", path]))
    print(f"Open it: xdg-open {path}\nLive, and with SQL: sonde ui {pid}")


def _record(command: list[str], seconds: float, folder: str, output: str) -> int | None:
    """Run the job under the recorder and return its pid, or None if it failed."""
    with open(output, "w", encoding="utf-8") as file:
        job = subprocess.Popen(
            [sys.executable, *command],
            env=environ.make_child_environment(SONDE="1"),
            cwd=folder,
            stdout=file,
        )
        _show_progress(job, seconds)
        return job.pid if job.wait() == 0 else None


def _show_modules(pid: int) -> None:
    print(f"\nWhere the time of a step goes, module by module\n$ sonde modules {pid}")
    parser = argparse.ArgumentParser()
    modules.add_arguments(parser)
    modules.run(parser.parse_args([str(pid)]))


def _ask(recording: Recording, pid: int, queries: tuple[tuple[str, str], ...]) -> None:
    for title, sql in queries:
        print(f'\n{title}\n$ sonde query {pid} "{sql}"')
        _table.draw_arrow(recording.query(sql), sys.stdout)


def _show_progress(job: subprocess.Popen[bytes], seconds: float) -> None:
    start = time.monotonic()
    while job.poll() is None and sys.stdout.isatty():
        done = min(1.0, (time.monotonic() - start) / (seconds + 0.2))
        send(sys.stdout, f"\r[{'#' * int(30 * done):<30}] recording pid {job.pid}")
        sys.stdout.flush()
        time.sleep(0.1)
    if sys.stdout.isatty():
        send(sys.stdout, "\r" + " " * 60 + "\r")
