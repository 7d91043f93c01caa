"""Start a run in a live recording and print its id."""

from __future__ import annotations

import argparse

from sonde.analysis.profile_process import DURATION_S, TIMEOUT_S, find_live_session, start_run
from sonde.cli import _options, _runs

EXAMPLES = (
    "sonde profile start 4242 --duration 5min --tag nightly",
    "sonde profile start 4242 --source call",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the process to profile; it must be recorded already")
    _options.add_span(parser, "-d", "--duration", what="end the run after this long",
                      default=f"{DURATION_S:g}s")  # fmt: skip
    _options.add_timeout(parser, f"{TIMEOUT_S:g}s", "give up if the run has not begun by then")
    _runs.add_profile_options(parser)


def run(args: argparse.Namespace) -> int:
    session = find_live_session(args.target)
    options = _runs.make_options(args).make_run_options(args.duration)
    print(start_run(session, options, args.timeout).id)
    return 0
