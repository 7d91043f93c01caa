"""Watch CPU, memory, disk, network and GPUs under a job; then a report with advice."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time

from sonde import launch, settings
from sonde.cli import _progress
from sonde.cli.run import find_program
from sonde.errors import ConfigError, Error, NoSession
from sonde.monitor import detach
from sonde.monitor.command import Job
from sonde.monitor.condition import METRICS, Condition
from sonde.monitor.folder import Folder
from sonde.monitor.scope import Look, Scope
from sonde.monitor.watch import ALL, MINE, Options, Progress, Watch
from sonde.session.process import read_start_ticks

_USAGE = "sonde monitor [options] [-- COMMAND [arguments]]"
_EXAMPLES = """\
before a job, in its script:   sonde monitor --detach --out report; python train.py; touch stop.flag
around a job:                  sonde monitor -- python train.py
beside a running process:      sonde monitor --pid 4711 -t 10
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = _USAGE
    parser.epilog = _EXAMPLES + (parser.epilog or "")
    parser.add_argument("-t", "--minutes", type=float, metavar="MINUTES",
                        help="how long; default 60, with a command until it ends")  # fmt: skip
    parser.add_argument("--delay", metavar="S", default="0", help="begin to measure so much later")
    parser.add_argument("--wait-for", metavar="WHAT",
                        help="begin when this holds: 'gpu>20', 'cpu>150 and disk<1'; known: "
                        + ", ".join(METRICS))  # fmt: skip
    parser.add_argument("--period", metavar="S", default="1s", help="between two looks; default 1s")
    parser.add_argument("--window", metavar="S", default="10s", help="that has a vote; default 10s")
    parser.add_argument("--out", metavar="DIR", help="default: sonde-monitor-DATE-TIME")
    parser.add_argument(
        "--gpus", default=ALL, help="0,1; or mine: those that the job has memory on; default all"
    )
    parser.add_argument("--pid", type=int, help="watch this process and all below it")
    parser.add_argument(
        "--detach",
        action="store_true",
        help="go to the background once it measures; `touch stop.flag` ends it",
    )


def run(args: argparse.Namespace) -> int:
    options = _read_options(args)  # what is wrong is said before anything is touched
    path = os.path.abspath(args.out or time.strftime("sonde-monitor-%Y%m%d-%H%M%S"))
    if args.detach:
        pid = detach.start(path, _repeat(args, path))
        print(f"sonde: process {pid} is measuring into {path}; `touch stop.flag` here, or in "
              f"{path}, stops it")  # fmt: skip
        return 0
    try:
        folder = Folder(path)
    except Error as error:
        return _run_alone(options, error)
    try:
        return _monitor(options, folder)
    finally:
        folder.close()


def _make_job(options: Options) -> Job:
    env = launch.make_job_environment(options.command) if options.command else {}
    return Job(options.command, env)


def _run_alone(options: Options, error: Error) -> int:
    """The command without us: a full disk of ours is no reason for it not to run."""
    if not options.command:
        raise error
    print(f"sonde: it runs unmeasured: {error}", file=sys.stderr)
    with _make_job(options) as job:
        job.start()
    return job.code


def _monitor(options: Options, folder: Folder) -> int:
    scope = Scope(os.getpid(), 1) if options.command else Scope(options.pid)
    with _make_job(options) as job:
        try:
            watch = Watch(options, folder, job, scope)
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


def _report(watch: Watch, options: Options) -> None:
    from sonde.monitor import report  # it brings the database along: not while the job runs

    # What the job prints is its own; with a command we say nothing on stdout.
    file = sys.stderr if options.command else sys.stdout
    report.write(watch.describe(), file)


# ---- options -------------------------------------------------------------------------------------


def _read_options(args: argparse.Namespace) -> Options:
    command = list(args.rest)
    if args.pid is not None and command:
        raise ConfigError("--pid is for a process that runs already; leave it out, or `-- COMMAND`")
    if args.detach and command:
        raise ConfigError("--detach is for the line before a job; leave it out, or `-- COMMAND`")
    if args.pid is not None and read_start_ticks(args.pid) is None:
        raise NoSession(f"there is no process {args.pid}")
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        raise ConfigError(f"-t {args.minutes:g} is not a time; give minutes, such as 0.5 or 90")
    if command:
        find_program(command[0])
    default_s = None if command else 3600.0
    every_s = _read_span("--period", args.period)
    return Options(
        max_s=default_s if args.minutes is None else args.minutes * 60,
        delay_s=_read_span("--delay", args.delay), wait_for=Condition(args.wait_for),
        every_s=float(settings.read_values({"host.every": every_s})["host.every"]),
        window_s=max(_read_span("--window", args.window), every_s),
        gpus=_read_gpus(args.gpus), pid=args.pid or 0, command=command,
    )  # fmt: skip


def _read_span(name: str, text: str) -> float:
    try:
        span_s = settings.parse_span(text)
        if span_s < 0 or (span_s == 0 and name != "--delay"):
            raise ValueError
        return span_s
    except (KeyError, ValueError):
        raise ConfigError(f"{name} {text} is not a time; write 5, 0.5s, 100ms or 2min") from None


def _read_gpus(text: str) -> str | list[int]:
    if text in (ALL, MINE):
        return text
    try:
        return sorted({int(word) for word in text.split(",") if int(word) >= 0})
    except ValueError:
        raise ConfigError(f"--gpus {text} is not understood; write 0,1 or mine or all") from None


def _repeat(args: argparse.Namespace, path: str) -> list[str]:
    """The same options, for the process in the background."""
    words = ["--out", path, "--delay", args.delay, "--period", args.period,
             "--window", args.window, "--gpus", args.gpus]  # fmt: skip
    for name, value in (("-t", args.minutes), ("--pid", args.pid), ("--wait-for", args.wait_for)):
        words += [] if value is None else [name, str(value)]
    return words


# ---- progress ------------------------------------------------------------------------------------


def _show(bar: _progress.Bar, progress: Progress, options: Options) -> None:
    if options.command:
        return  # the terminal is the command's
    words = [progress.state]
    if progress.max_s is not None and progress.passed_s:
        words.append(f"{_show_span(progress.max_s - progress.passed_s)} left")
    if progress.look is not None:
        words += _show_look(progress.look)
    bar.tell("  ".join(words), progress.passed_s)


def _show_span(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


def _show_look(look: Look) -> list[str]:
    words = []
    if look.cpu_pct is not None:
        words.append(f"cpu {look.cpu_pct:.0f} %")
    known = [gpu.util_pct for gpu in look.gpus.values() if gpu.util_pct is not None]
    if known:
        words.append(f"gpu {'/'.join(f'{util:.0f}' for util in known)} %")
    if look.used_bytes is not None and look.total_bytes:
        words.append(f"memory {look.used_bytes / 2**30:.1f}/{look.total_bytes / 2**30:.0f} GiB")
    return words
