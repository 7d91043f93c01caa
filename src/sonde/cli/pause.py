"""Record nothing until resumed; the job runs on."""

from __future__ import annotations

import argparse

from sonde import environ
from sonde.session import steering
from sonde.session.target import find_sessions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")


def run(args: argparse.Namespace) -> int:
    for session in steering.select_alive(find_sessions(args.target, environ.find_root())):
        steering.pause(session)
    return 0
