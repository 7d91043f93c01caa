"""Write the profile since the last snapshot, or since the start, at any time."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from sonde import environ
from sonde.cli import _options
from sonde.errors import Error
from sonde.session import Session, pstats_file, snapshots, stack_table
from sonde.session.files import Replacement
from sonde.session.stack_table import Nodes
from sonde.session.target import find_sessions

GROUP = "profile"
EXAMPLES = (
    "sonde snapshot 4242                            what came since the last snapshot",
    "sonde snapshot 4242 --cumulative -o now.prof   everything since the start",
    "sonde snapshot diff old.prof now.prof          which functions take more than before",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the recording to take a snapshot of")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--delta", action="store_const", dest="kind", const=pstats_file.DELTA,
                       help="what came since the last snapshot (the default)")  # fmt: skip
    kinds.add_argument("--cumulative", action="store_const", dest="kind", const=pstats_file.TOTAL,
                       help="everything since the start")  # fmt: skip
    kinds.add_argument("--calls", action="store_true",
                       help="exact calls instead of samples; needs source.call=on")  # fmt: skip
    _options.add_by(parser)
    _options.add_output(parser, "also copy the snapshot to this file")
    parser.set_defaults(kind=pstats_file.DELTA)


def run(args: argparse.Namespace) -> int:
    sessions = find_sessions(args.target, environ.find_root())
    if args.output and len(sessions) > 1:
        raise Error("-o takes one process; without it each file goes into its session folder")
    if args.output:
        _check(args.output)  # before an interval is used up for a file that cannot be written
    for session in sessions:
        path = _take_calls(session) if args.calls else _take(session, args)
        if args.output:
            _copy(path, args.output)
        print(args.output or path)
    if sys.stderr.isatty():
        print("open it with `python -m pstats FILE` or snakeviz; "
              "`sonde snapshot diff` compares two", file=sys.stderr)  # fmt: skip
    return 0


def _take(session: Session, args: argparse.Namespace) -> str:
    try:
        return snapshots.take(session, weight=args.by, read=_read_nodes)[args.kind]
    except OSError as error:
        raise Error(f"{session.path(snapshots.FOLDER)}: {error.strerror}") from None


def _read_nodes(session: Session) -> Nodes:
    try:
        return stack_table.read_nodes(session)
    except FileNotFoundError:  # it has ended, and is archived
        from sonde.store.stack_nodes import read_archived_nodes  # Arrow: only when it is needed

        return read_archived_nodes(session)


def _take_calls(session: Session) -> str:
    from sonde.analysis.exact_calls import read_calls
    from sonde.session import steering  # only here: the rest needs no answer from the process

    if session.is_alive():
        steering.inspect(session, timeout_s=2.0)  # it publishes its newest numbers
    stats = read_calls(session)
    if not stats:
        how = f"; `sonde config {session.pid} source.call=on` starts it"
        raise Error(
            f"no calls of process {session.pid} were counted{how if session.is_alive() else ''}"
        )
    return snapshots.write_calls(session, stats)


def _check(output: str) -> None:
    folder = os.path.dirname(output) or "."
    if os.path.isdir(output):
        raise Error(f"{output} is a folder; name a file in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Error(f"{folder} is not a folder that can be written to")


def _copy(path: str, output: str) -> None:
    try:
        with Replacement(output) as hidden:
            shutil.copyfile(path, hidden)
    except OSError as error:
        raise Error(f"{output}: {error.strerror}; the snapshot is {path}") from None
