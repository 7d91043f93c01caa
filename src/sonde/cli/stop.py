"""End a recording; the job runs on."""

from __future__ import annotations

import argparse

from sonde import environ
from sonde.session import steering
from sonde.session.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--timeout", type=float, default=2.0, metavar="SECONDS", help="default: %(default)g"
    )


def run(args: argparse.Namespace) -> int:
    for session in steering.select_alive(find_sessions(args.target, environ.find_root())):
        steering.stop(session, args.timeout)
    return 0
