"""End the recording of a running process and leave it as it was."""

from __future__ import annotations

import argparse

from sonde import attach, config, control
from sonde.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", metavar="PID", nargs="+")
    parser.add_argument(
        "--timeout",
        type=float,
        default=attach.TIMEOUT_S,
        metavar="SECONDS",
        help="give up after this long; default: %(default)g",
    )


def run(args: argparse.Namespace) -> int:
    for target in args.targets:
        for session in control.select_alive(find_sessions(target, config.find_root())):
            attach.detach(session, args.timeout)
    return 0
