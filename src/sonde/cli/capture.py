"""Record a few steps with torch's own profiler: every operator and kernel."""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
from collections.abc import Sequence

from sonde import environ, settings
from sonde.analysis import capture
from sonde.cli import _progress
from sonde.errors import ConfigError, Error
from sonde.session import captures, steering
from sonde.session.files import Replacement
from sonde.session.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="of a job: all its ranks, at once")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--steps", type=int, metavar="N", help="how many steps; default 3")
    how.add_argument("--duration", metavar="S", help="so long instead: for programs without steps")
    parser.add_argument("--timeout", metavar="S", default="60",
                        help="how long to wait for a step; default 60")  # fmt: skip
    parser.add_argument("--no-shapes", dest="shapes", action="store_false",
                        help="without the shapes of tensors: ends faster")  # fmt: skip
    parser.add_argument("--memory", action="store_true", help="with every allocation")
    parser.add_argument("--stacks", action="store_true", help="with Python stacks: much slower")
    parser.add_argument("-o", "--output", metavar="FILE", help="a copy goes there; .gz packs it")


def run(args: argparse.Namespace) -> int:
    timeout_s = _read_span(args.timeout)
    duration_s = None if args.duration is None else _read_span(args.duration)
    steps = None if duration_s is not None else 3 if args.steps is None else args.steps
    options = captures.Options(
        steps=steps, duration_s=duration_s, timeout_s=timeout_s, shapes=args.shapes,
        memory=args.memory, stacks=args.stacks,
    )  # fmt: skip
    targets = steering.select_alive(find_sessions(args.target, environ.find_root()))
    _check_output(args.output, len(targets))
    asked = capture.ask(targets, options)
    with _progress.Bar("capture", None) as bar:
        counting = capture.wait(asked, timeout_s + (duration_s or 0), bar.tell)
    return _report(counting, args.output)


def _report(asked: Sequence[capture.Asked], output: str | None) -> int:
    """Each one's file; an error if there is none at all, a line for each that failed."""
    paths, failures = [], []
    for one in asked:
        try:
            paths.append(one.find_file())
        except capture.Failed as error:
            failures.append(error)
    for path in paths:
        if output is not None:
            _copy(path, output)
        print(output or path)
    for one in asked:
        if one.state == captures.DONE and one.about["why"]:
            print(f"sonde: process {one.session.pid}: {one.about['why']}", file=sys.stderr)
    for failure in failures[: len(failures) if paths else -1]:
        print(f"sonde: {failure}", file=sys.stderr)
    if failures and not paths:
        raise failures[-1]
    if sys.stderr.isatty():
        print("`sonde export TARGET --to chrome` merges it with the samples; "
              "python.torch_op and python.torch_kernel hold its rows", file=sys.stderr)  # fmt: skip
    return 1 if failures else 0


def _read_span(text: str) -> float:
    try:
        found = settings.parse_span(text)
    except (KeyError, ValueError):
        found = 0.0
    if not 0 < found < 86400:
        raise ConfigError(f"{text!r} is not a time; write 30, 90s or 5min")
    return found


def _check_output(output: str | None, count: int) -> None:
    """Before a capture is made for a file that nobody gets."""
    if output is None:
        return
    if count > 1:
        raise Error("-o takes one process; without it each one's capture goes into its own folder")
    folder = os.path.dirname(output) or "."
    if os.path.isdir(output) or not os.access(folder, os.W_OK | os.X_OK):
        raise Error(f"{output} cannot be written; name a file in a folder of yours")


def _copy(path: str, output: str) -> None:
    """As JSON, or packed if its name says so."""
    pack = output.endswith(".gz") and not capture.is_packed(path)
    unpack = capture.is_packed(path) and not output.endswith(".gz")
    try:
        with (
            Replacement(output) as hidden,
            (gzip.open if unpack else open)(path, "rb") as source,
            (gzip.open if pack else open)(hidden, "xb") as file,
        ):
            shutil.copyfileobj(source, file, 2**20)
    except OSError as error:
        raise Error(f"{output}: {error.strerror or error}; the capture is {path}") from None
