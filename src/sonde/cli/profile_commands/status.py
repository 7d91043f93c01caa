"""Print the state of a run, and why it failed if it did."""

from __future__ import annotations

import argparse
import json

from sonde.cli import _options, _runs

EXAMPLES = (
    "sonde profile status RUN",
    "sonde profile status RUN --format json    with the time of every change of state",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _runs.add_run(parser)
    _options.add_format(parser, ("table", "json"))


def run(args: argparse.Namespace) -> int:
    found = _runs.find_run(args)
    found.process()
    state, reason = found.find_state()
    if args.format == "json":
        offset_ns = found.session.wall_offset_ns
        states = [[name, t_ns + offset_ns] for name, t_ns in found.list_states()]
        about = found.about.dump()
        del about["max_s"]
        max_s = found.about.max_s
        about["max_ns"] = None if max_s is None else round(max_s * 1e9)
        print(json.dumps({**about, "state": state, "reason": reason, "states": states}))
    else:
        print(f"{state}" + (f": {reason}" if reason else ""))
    return 0
