"""Record again after `sonde pause`."""

from __future__ import annotations

import argparse

from sonde import environ
from sonde.cli import _options
from sonde.session import steering
from sonde.session.target import find_sessions

GROUP = "record"
EXAMPLES = (
    "sonde resume 4242",
    "sonde resume train-7        all ranks of a job",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to go on with")


def run(args: argparse.Namespace) -> int:
    for session in steering.select_alive(find_sessions(args.target, environ.find_root())):
        steering.resume(session)
    return 0
