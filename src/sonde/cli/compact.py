"""Merge the small files of a shared place into large ones."""

from __future__ import annotations

import argparse

from sonde.cli import _options, _table
from sonde.store.compaction import compact
from sonde.store.place import FleetPlace, require_files

GROUP = "export"
EXAMPLES = (
    "sonde compact s3://bucket/sonde           once a day, from one host, as a cron job",
    "sonde compact /shared/sonde --format json",
)
_COLUMNS = {
    "table": "string", "day": "string", "before": "int64", "after": "int64", "rows": "int64",
    "bytes": "int64",
}  # fmt: skip
_NOTE = """\
Jobs may run and others may ask meanwhile: each row is seen once at every moment. A second one at
the same time is refused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="PLACE",
                        help="the place: what archive.to of the jobs is")  # fmt: skip
    _options.add_note(parser, _NOTE)
    _options.add_format(parser)
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    place = FleetPlace(args.place.rstrip("/"))
    require_files(place)
    rows = [vars(one) for one in compact(place)]
    _table.write_records(rows, _COLUMNS, args.format, args.output)
    return 0
