"""Start recording a process that is already running, without restarting it."""

from __future__ import annotations

import argparse
import sys

from sonde import environ
from sonde import settings as config
from sonde.attach import visit
from sonde.cli import _options
from sonde.errors import Error

GROUP = "record"
EXAMPLES = (
    "sonde attach 4242",
    "sonde attach 4242 --set stack.every=5ms",
    "sonde attach --check 4242           only say whether it is possible",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pids", metavar="PID", nargs="+", type=int, help="a running Python process")
    _options.add_settings(parser)
    _options.add_timeout(parser, f"{visit.TIMEOUT_S:g}s")
    parser.add_argument(
        "--check", action="store_true", help="only say whether it is possible; touch nothing"
    )


def run(args: argparse.Namespace) -> int:
    settings = _options.split_settings(args.set)
    config.read_values(settings)
    failures = []
    for pid in args.pids:
        try:
            _attach(pid, settings, args)
        except Error as error:
            if len(args.pids) == 1:
                raise
            print(f"sonde: {error}", file=sys.stderr)
            failures.append(error)
    return failures[0].exit_code if failures else 0


def _attach(pid: int, settings: dict[str, str], args: argparse.Namespace) -> None:
    if args.check:
        way = visit.find_way(pid, environ.find_root())
        whose = "ours" if way.fits else "its own"
        version = ".".join(map(str, way.version))
        print(f"process {pid} can be attached to: Python {version}, sonde is {whose}")
        return
    session = visit.attach(pid, settings, args.timeout)
    print(session.folder)
    print(
        f"recording; see `sonde top {pid}`, `sonde stacks {pid}`, `sonde query {pid} SQL`; "
        f"`sonde stop {pid}` ends it",
        file=sys.stderr,
    )
