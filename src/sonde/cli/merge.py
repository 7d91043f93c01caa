"""Add snapshots up: of intervals, of processes; refuses to count the same time twice."""

from __future__ import annotations

import argparse

from sonde.errors import Error
from sonde.session import pstats_file
from sonde.session.files import write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="snapshots, or cProfile's files")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where the sum goes")


def run(args: argparse.Namespace) -> int:
    found = [(path, *pstats_file.load(path)) for path in args.files]
    abouts = [(path, about) for path, _stats, about in found]
    pstats_file.refuse_overlap(abouts)
    about = {
        "sonde": 1,
        "kind": "merged",
        "parts": [dict(part) for _path, said in abouts for part in pstats_file.list_parts(said)],
    }
    try:
        whole = pstats_file.dump(pstats_file.add(stats for _, stats, _ in found), about)
        write_whole(args.output, whole, sync=True)
    except OSError as error:
        raise Error(f"{args.output}: {error.strerror}") from None
    return 0
