"""Profile a process for a while, or a new command, and show the result."""

from __future__ import annotations

import argparse
import sys

from sonde.analysis.profile_process import (
    DURATION_S,
    TIMEOUT_S,
    ProfileListener,
    profile_command,
    profile_process,
)
from sonde.cli import _options, _progress, _runs
from sonde.errors import ConfigError, Error
from sonde.fleet.hosts import find_cluster
from sonde.session.run import Run

GROUP = "profile"
EXAMPLES = (
    "sonde profile 4242 --duration 30s                       attaches if need be",
    "sonde profile --to flamegraph -o out.html -- python train.py",
    "sonde profile start 4242 --tag nightly                  run by run",
)
TAKES_COMMAND = True
_USAGE = "sonde profile [options] (TARGET | -- COMMAND [arguments])"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{_USAGE}\n       sonde profile SUBCOMMAND [arguments]"
    _options.add_target(parser, "the process to profile: a pid, recorded or not, or a recording",
                        optional=True, cluster=True)  # fmt: skip
    _options.add_span(
        parser, "-d", "--duration",
        what=f"how long to profile (default: {DURATION_S:g}s, or until COMMAND ends)",
    )  # fmt: skip
    _options.add_timeout(
        parser, f"{TIMEOUT_S:g}s", "give up if the process has not answered by then"
    )
    _runs.add_profile_options(parser)
    _runs.add_result_options(parser)


def run(args: argparse.Namespace) -> int:
    _runs.check_output(args)
    if args.rest and args.target is None:
        return _profile_command(args.rest, args)
    if args.target is None or args.rest:
        raise ConfigError(
            "give a pid, or `-- COMMAND`, or a sub-command; see `sonde profile --help`"
        )
    duration_s = DURATION_S if args.duration is None else args.duration
    if "@" in args.target and (cluster := find_cluster(args.target)) is not None:
        from sonde.cli._cluster_jobs import profile_cluster  # Flight takes a while to import

        return profile_cluster(cluster, duration_s, args)
    with _ProgressListener(duration_s) as listener:
        result = profile_process(
            args.target, duration_s, timeout=args.timeout, options=_runs.make_options(args),
            listener=listener,
        )  # fmt: skip
    return _runs.show_result(result, args)


def _profile_command(command: list[str], args: argparse.Namespace) -> int:
    """Run a command with its very first moment in the profile; return its exit code."""
    with _ProgressListener(args.duration) as listener:
        done = profile_command(
            command, args.duration, options=_runs.make_options(args), listener=listener
        )
    if done.result is not None:
        _runs.show_result(done.result, args)
    elif done.problem is not None:
        print(f"sonde: {done.problem}", file=sys.stderr)
    return done.code


class _ProgressListener(ProfileListener):
    """Draws how a run goes."""

    def __init__(self, duration_s: float | None) -> None:
        self._duration_s = duration_s
        self._bar: _progress.Bar | None = None

    def __enter__(self) -> _ProgressListener:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()

    def show(self, run: Run, passed_s: float) -> None:
        if self._bar is None:
            self._bar = _progress.Bar(f"profiling {run.session.pid}", self._duration_s)
        self._bar.show(passed_s)

    def stop_early(self, run: Run) -> None:  # noqa: ARG002
        if self._bar is not None:
            self._bar.print_line("stopping early; what was seen so far is the result")

    def warn(self, problem: Error) -> None:
        print(f"sonde: {problem}", file=sys.stderr)
