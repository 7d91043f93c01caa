"""Add snapshots up, of intervals or of processes; refuse to count the same time twice."""

from __future__ import annotations

import argparse

from sonde.errors import Error
from sonde.session import pstats_file
from sonde.session.files import write_whole

EXAMPLES = (
    "sonde snapshot merge delta-0001.prof delta-0002.prof -o both.prof",
    "sonde snapshot merge rank-*.prof -o job.prof",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="snapshots, or files of cProfile")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the file to write the sum to"
    )


def run(args: argparse.Namespace) -> int:
    found = [(path, *pstats_file.load(path)) for path in args.files]
    pstats_file.refuse_overlap([(path, parts) for path, _stats, parts in found])
    merged = [part for _path, _stats, parts in found for part in parts]
    try:
        whole = pstats_file.dump(pstats_file.add(stats for _, stats, _ in found), merged)
        write_whole(args.output, whole, sync=True)
    except OSError as error:
        raise Error(f"{args.output}: {error.strerror}") from None
    return 0
