"""Show the result of a run, or of all runs with a tag together."""

from __future__ import annotations

import argparse

from sonde.analysis.profile_process import TIMEOUT_S, merge_tagged
from sonde.cli import _options, _runs
from sonde.errors import ConfigError

EXAMPLES = (
    "sonde profile results RUN --by wall --limit 50",
    "sonde profile results RUN --to flamegraph -o run.html",
    "sonde profile results --tag nightly        all runs with one tag, merged",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _runs.add_run(parser, optional=True)
    parser.add_argument("--tag", metavar="TAG", action="append", default=[],
                        help="instead of RUN: merge all runs with this tag; "
                        "may be repeated")  # fmt: skip
    _options.add_timeout(parser, f"{TIMEOUT_S:g}s", "wait this long for the run to end")
    _runs.add_result_options(parser)


def run(args: argparse.Namespace) -> int:
    _runs.check_output(args)
    if args.run_id is None and not args.tag:
        raise ConfigError("give a RUN or --tag TAG; `sonde profile list` shows both")
    if args.run_id is None:
        return _runs.show_result(merge_tagged(args.tag), args)
    return _runs.show_result(_runs.find_run(args).result(args.timeout), args)
