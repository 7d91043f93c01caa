"""Ask a recording in SQL."""

from __future__ import annotations

import argparse
import sys

from sonde.cli import _table
from sonde.store import recording as query


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("sql", metavar="SQL", help="one SELECT; - reads it from stdin")
    _table.add_output_arguments(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=query.TIMEOUT_S,
        metavar="SECONDS",
        help="default: %(default)g",
    )
    parser.add_argument(
        "--memory", default=query.MEMORY, metavar="SIZE", help="default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    sql = sys.stdin.read() if args.sql == "-" else args.sql
    recording = query.open_recording(args.target)
    rows = recording.query(sql, timeout_s=args.timeout, memory=args.memory)
    _table.write_rows(rows, args.format, args.output)
    return 0
