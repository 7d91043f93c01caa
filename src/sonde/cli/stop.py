"""End a recording; the job runs on."""

from __future__ import annotations

import argparse

from sonde import config, control
from sonde.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--timeout", type=float, default=2.0, metavar="SECONDS", help="default: %(default)g"
    )


def run(args: argparse.Namespace) -> int:
    for session in control.select_alive(find_sessions(args.target, config.find_root())):
        control.stop(session, args.timeout)
    return 0
