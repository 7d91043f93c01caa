"""Compare two snapshots: which functions take a larger or smaller share than before."""

from __future__ import annotations

import argparse
import os
from typing import Any

from sonde.cli import _options
from sonde.cli._table import write_records
from sonde.session import pstats_file
from sonde.words import shorten_file

EXAMPLES = (
    "sonde snapshot diff delta-0001.prof delta-0007.prof",
    "sonde snapshot diff before.prof after.prof --sort total --format csv",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="a snapshot, or a file of cProfile")
    parser.add_argument("after", metavar="AFTER", help="the one to compare with it")
    parser.add_argument(
        "--sort", choices=("own", "total"), default="own",
        help="the change that comes first: of a function's own time, or with all that it calls "
        "(default: %(default)s)",
    )  # fmt: skip
    _options.add_limit(parser, 30, "functions")
    _options.add_format(parser)
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    return compare_files(
        args.before, args.after, args.format, args.output, sort=args.sort, limit=args.limit
    )


def compare_files(
    first: str, second: str, form: str, output: str | None, *, sort: str = "own", limit: int = 30
) -> int:
    """Write the functions whose share differs most between two files; return the exit code."""
    before, after = (pstats_file.load(path)[0] for path in (first, second))
    rows = compare(before, after)
    rows.sort(key=lambda row: -abs(row[f"{sort}_change_pct"]))
    if not rows:
        rows = [dict.fromkeys(_COLUMNS)]
    shown = rows[: limit or None]
    if form == "table":
        shown = [{**row, "place": shorten_file(row["place"] or "", os.getcwd())} for row in shown]
    write_records(shown, _COLUMNS, form, output)
    return 0


_COLUMNS = {
    "func": "string", "place": "string", "own_before_pct": "float64", "own_after_pct": "float64",
    "own_change_pct": "float64", "total_before_pct": "float64", "total_after_pct": "float64",
    "total_change_pct": "float64", "calls_before": "int64", "calls_after": "int64",
}  # fmt: skip


_NONE: tuple[int, int, float, float, dict[pstats_file.Function, pstats_file.Numbers]] = (
    0,
    0,
    0.0,
    0.0,
    {},
)


def compare(before: pstats_file.Stats, after: pstats_file.Stats) -> list[dict[str, Any]]:
    """Return one row per function, in shares of all own time: the two may not last equally long."""
    wholes = [sum(entry[2] for entry in stats.values()) or 1.0 for stats in (before, after)]
    rows: list[dict[str, Any]] = []
    for file, line, func in sorted({*before, *after}):
        old = before.get((file, line, func), _NONE)
        new = after.get((file, line, func), _NONE)
        own = [100 * entry[2] / whole for entry, whole in zip((old, new), wholes, strict=True)]
        total = [100 * entry[3] / whole for entry, whole in zip((old, new), wholes, strict=True)]
        values = (func, f"{file}:{line}", own[0], own[1], own[1] - own[0], total[0], total[1],
                  total[1] - total[0], old[1], new[1])  # fmt: skip
        rows.append(
            {
                name: round(value, 2) if isinstance(value, float) else value
                for name, value in zip(_COLUMNS, values, strict=True)
            }
        )
    return rows
