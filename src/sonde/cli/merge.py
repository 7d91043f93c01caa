"""Add snapshots up: of intervals, of processes; refuses to count the same time twice."""

from __future__ import annotations

import argparse

from sonde import pstat
from sonde.errors import Error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="snapshots, or cProfile's files")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where the sum goes")


def run(args: argparse.Namespace) -> int:
    found = [(path, *pstat.load(path)) for path in args.files]
    abouts = [(path, about) for path, _stats, about in found]
    pstat.refuse_overlap(abouts)
    about = {
        "sonde": 1,
        "kind": "merged",
        "parts": [dict(part) for _path, said in abouts for part in pstat.list_parts(said)],
    }
    try:
        pstat.write(args.output, pstat.dump(pstat.add(stats for _, stats, _ in found), about))
    except OSError as error:
        raise Error(f"{args.output}: {error.strerror}") from None
    return 0
