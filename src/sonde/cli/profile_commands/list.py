"""List the runs of a recording, or of all."""

from __future__ import annotations

import argparse
import json
import sys
import time

from sonde import environ
from sonde.cli import _options, _table
from sonde.session import runs
from sonde.session.run import Run
from sonde.session.target import find_sessions

EXAMPLES = (
    "sonde profile list",
    "sonde profile list 4242 --format json",
)
_NAMES = ("run", "state", "process", "began", "lasted", "name", "tags")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recordings whose runs to list (default: all)", optional=True)
    _options.add_format(parser, ("table", "json"))


def run(args: argparse.Namespace) -> int:
    sessions = find_sessions(args.target or "all", environ.find_root())
    found = [one for session in sessions for one in runs.list_runs(session)]
    rows = [_describe(one) for one in found]
    if args.format == "json":
        print(json.dumps([_describe_exactly(one) for one in found], indent=1))
    elif rows:
        _table.draw_table(_NAMES, rows, sys.stdout)
    else:
        print("there are no runs; `sonde profile PID` makes one")
    return 0


def _describe(one: Run) -> list[object]:
    one.process()
    begin_ns, end_ns = one.read_times()
    began = lasted = None
    if begin_ns:
        seconds = (begin_ns + one.session.wall_offset_ns) / 1e9
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        lasted = f"{(end_ns - begin_ns) / 1e9:.2f} s" if end_ns else None
    return [one.id, one.state, one.session.pid, began, lasted, one.about.name,
            ",".join(one.tags) or None]  # fmt: skip


def _describe_exactly(one: Run) -> dict[str, object]:
    """Return a run for programs; times are wall clock, in nanoseconds since 1970."""
    begin_ns, end_ns = one.read_times()
    state, reason = one.find_state()
    offset_ns = one.session.wall_offset_ns
    return {
        "run": one.id, "state": state, "reason": reason, "pid": one.session.pid,
        "host": one.session.host, "session": one.session.id, "name": one.about.name,
        "tags": one.tags, "begin_wall_ns": begin_ns + offset_ns if begin_ns else None,
        "end_wall_ns": end_ns + offset_ns if end_ns else None,
    }  # fmt: skip
