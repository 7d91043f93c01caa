"""Wait until a run has ended and print how it did."""

from __future__ import annotations

import argparse

from sonde.analysis.profile_process import TIMEOUT_S
from sonde.cli import _options, _runs

EXAMPLES = (
    "sonde profile wait RUN",
    "sonde profile wait RUN --timeout 10min && sonde profile results RUN",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _runs.add_run(parser)
    _options.add_timeout(parser, f"{TIMEOUT_S:g}s")


def run(args: argparse.Namespace) -> int:
    return _runs.say_state(_runs.find_run(args).wait(args.timeout))
