"""Measure CPU, memory, disk, network and GPUs under a job, then report with advice."""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.util import find_spec

from sonde import launch, settings
from sonde.cli import _options, _progress
from sonde.errors import ConfigError, Error, NoSession, explain_missing
from sonde.monitor import background
from sonde.monitor.command import Command
from sonde.monitor.condition import METRICS, Condition
from sonde.monitor.folder import Folder
from sonde.monitor.scope import Reading, Scope
from sonde.monitor.watch import ALL, MINE, Monitor, MonitorOptions, Progress
from sonde.session.process import read_start_ticks
from sonde.words import show_bytes, show_duration

GROUP = "watch"
EXAMPLES = (
    "sonde monitor -- python train.py                      around a job",
    "sonde monitor --pid 4242 --duration 10min             beside a running process",
    "sonde monitor --detach -o report; python train.py; touch stop.flag    in a script",
)
TAKES_COMMAND = True
_USAGE = "sonde monitor [options] [-- COMMAND [arguments]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = _USAGE
    _options.add_span(parser, "-d", "--duration",
                      what="how long to measure (default: 1h, or until COMMAND ends)")  # fmt: skip
    _options.add_span(parser, "--delay", what="begin to measure this much later", default="0s",
                      or_zero=True)  # fmt: skip
    parser.add_argument("--wait-for", metavar="WHAT",
                        help="begin to measure when this holds: 'gpu>20', 'cpu>150 and disk<1'; "
                        "known are " + ", ".join(METRICS))  # fmt: skip
    _options.add_span(parser, "--every", what="time between two readings", default="1s")
    _options.add_span(parser, "--piece", what="each piece of this length has a vote in the advice",
                      default="10s")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="DIR",
                        help="the folder to write (default: sonde-monitor-DATE-TIME)")  # fmt: skip
    parser.add_argument(
        "--gpus", default=ALL, metavar="GPUS",
        help="the GPUs to measure: 0,1 or all, or mine: those the job has memory on (default: all)",
    )  # fmt: skip
    parser.add_argument("--pid", type=int, help="measure this process and all below it")
    parser.add_argument(
        "--detach",
        action="store_true",
        help="go to the background once measuring; `touch stop.flag` ends it",
    )


def run(args: argparse.Namespace) -> int:
    options = _read_options(args)  # first, so that errors are reported before anything is touched
    path = os.path.abspath(args.output or time.strftime("sonde-monitor-%Y%m%d-%H%M%S"))
    if args.detach:
        pid = background.start(path, _repeat(args, path))
        print(f"sonde: process {pid} is measuring into {path}; `touch stop.flag` here, or in "
              f"{path}, stops it")  # fmt: skip
        return 0
    try:
        _need_database()
        folder = Folder(path)
    except Error as error:
        return _run_alone(options, error)
    try:
        return _monitor(options, folder)
    finally:
        folder.close()


def _need_database() -> None:
    """Refuse to measure for a report that cannot be written, without loading the database yet."""
    if find_spec("duckdb") is None:
        raise explain_missing(ModuleNotFoundError(name="duckdb"), "`sonde monitor`")


def _make_job(options: MonitorOptions) -> Command:
    env = launch.make_job_environment(options.command) if options.command else {}
    return Command(options.command, env)


def _run_alone(options: MonitorOptions, error: Error) -> int:
    """Run the command unmeasured: that we cannot write is no reason not to run it."""
    if not options.command:
        raise error
    print(f"sonde: it runs unmeasured: {error}", file=sys.stderr)
    with _make_job(options) as job:
        job.start()
    return job.code


def _monitor(options: MonitorOptions, folder: Folder) -> int:
    scope = Scope(os.getpid(), 1) if options.command else Scope(options.pid)
    with _make_job(options) as job:
        try:
            watch = Monitor(options, folder, job, scope)
        except Error as error:
            return _run_alone(options, error)
        try:
            if options.command:
                watch.wait_ready()
            job.start()
            with _progress.Bar("", options.max_s) as bar:
                watch.run(lambda progress: _show(bar, progress, options))
        finally:
            watch.close()
        if job.has_ended:
            job.wait()
        if not (options.command and job.signals > 1):
            _report(watch, options)
    return job.code


def _report(watch: Monitor, options: MonitorOptions) -> None:
    from sonde.monitor import report  # it brings the database along: not while the job runs

    # What the job prints is its own; with a command we say nothing on stdout.
    file = sys.stderr if options.command else sys.stdout
    report.write(watch.describe(), file)


# ---- options -------------------------------------------------------------------------------------


def _read_options(args: argparse.Namespace) -> MonitorOptions:
    command = list(args.rest)
    if args.pid is not None and command:
        raise ConfigError("--pid is for a process that runs already; leave it out, or `-- COMMAND`")
    if args.detach and command:
        raise ConfigError("--detach is for the line before a job; leave it out, or `-- COMMAND`")
    if args.pid is not None and read_start_ticks(args.pid) is None:
        raise NoSession(f"there is no process {args.pid}")
    if command:
        launch.find_program(command)
    default_s = None if command else 3600.0
    return MonitorOptions(
        max_s=default_s if args.duration is None else args.duration,
        delay_s=args.delay, wait_for=Condition(args.wait_for),
        every_s=float(settings.read_values({"host.every": args.every})["host.every"]),
        piece_s=max(args.piece, args.every),
        gpus=_read_gpus(args.gpus), pid=args.pid or 0, command=command,
    )  # fmt: skip


def _read_gpus(text: str) -> str | list[int]:
    if text in (ALL, MINE):
        return text
    try:
        return sorted({int(word) for word in text.split(",") if int(word) >= 0})
    except ValueError:
        raise ConfigError(f"--gpus {text} is not understood; write 0,1 or mine or all") from None


def _repeat(args: argparse.Namespace, path: str) -> list[str]:
    """Return the same options, for the process in the background."""
    words = ["--output", path, "--delay", str(args.delay), "--every", str(args.every),
             "--piece", str(args.piece), "--gpus", args.gpus]  # fmt: skip
    for name, value in (("--duration", args.duration), ("--pid", args.pid),
                        ("--wait-for", args.wait_for)):  # fmt: skip
        words += [] if value is None else [name, str(value)]
    return words


# ---- progress ------------------------------------------------------------------------------------


def _show(bar: _progress.Bar, progress: Progress, options: MonitorOptions) -> None:
    if options.command:
        return  # the terminal is the command's
    words = [progress.state]
    if progress.max_s is not None and progress.passed_s:
        words.append(f"{_show_left(progress.max_s - progress.passed_s)} left")
    if progress.reading is not None:
        words += _show_reading(progress.reading)
    bar.set_title("  ".join(words), progress.passed_s)


def _show_left(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 60 else show_duration(whole * 1e9)


def _show_reading(reading: Reading) -> list[str]:
    words = []
    if reading.cpu_pct is not None:
        words.append(f"cpu {reading.cpu_pct:.0f} %")
    known = [gpu.util_pct for gpu in reading.gpus.values() if gpu.util_pct is not None]
    if known:
        words.append(f"gpu {'/'.join(f'{util:.0f}' for util in known)} %")
    if reading.used_bytes is not None and reading.total_bytes:
        used, total = show_bytes(reading.used_bytes), show_bytes(reading.total_bytes)
        words.append(f"memory {used} of {total}")
    return words
