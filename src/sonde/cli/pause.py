"""Record nothing until resumed; the job runs on."""

from __future__ import annotations

import argparse

from sonde import config, control
from sonde.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")


def run(args: argparse.Namespace) -> int:
    for session in control.select_alive(find_sessions(args.target, config.find_root())):
        control.pause(session)
    return 0
