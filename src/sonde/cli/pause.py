"""Record nothing until `sonde resume`; the program runs on."""

from __future__ import annotations

import argparse

from sonde import environ
from sonde.cli import _options
from sonde.session import steering
from sonde.session.target import find_sessions

GROUP = "record"
EXAMPLES = (
    "sonde pause 4242",
    "sonde pause train-7        all ranks of a job",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to pause")


def run(args: argparse.Namespace) -> int:
    for session in steering.select_alive(find_sessions(args.target, environ.find_root())):
        steering.pause(session)
    return 0
