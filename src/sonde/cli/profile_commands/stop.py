"""End a run early, keep what it has seen, and print how it ended."""

from __future__ import annotations

import argparse

from sonde.analysis.profile_process import TIMEOUT_S
from sonde.cli import _options, _runs

EXAMPLES = (
    "sonde profile stop RUN",
    "sonde profile stop RUN && sonde profile results RUN",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _runs.add_run(parser)
    _options.add_timeout(parser, f"{TIMEOUT_S:g}s")


def run(args: argparse.Namespace) -> int:
    found = _runs.find_run(args)
    found.stop(args.timeout)
    return _runs.say_state(found.wait(args.timeout))
