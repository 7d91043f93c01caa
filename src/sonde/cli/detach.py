"""End the recording of a running process and leave it as it was."""

from __future__ import annotations

import argparse

from sonde import environ
from sonde.attach import visit
from sonde.session import steering
from sonde.session.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", metavar="PID", nargs="+")
    parser.add_argument(
        "--timeout",
        type=float,
        default=visit.TIMEOUT_S,
        metavar="SECONDS",
        help="give up after this long; default: %(default)g",
    )


def run(args: argparse.Namespace) -> int:
    for target in args.targets:
        for session in steering.select_alive(find_sessions(target, environ.find_root())):
            visit.detach(session, args.timeout)
    return 0
