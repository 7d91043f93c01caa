"""Compare two snapshots: which functions take more or less than before."""

from __future__ import annotations

import argparse

from sonde.cli._table import add_output_arguments, write_rows
from sonde.session import pstats_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="a snapshot, or a file of cProfile's")
    parser.add_argument("after", metavar="AFTER")
    parser.add_argument(
        "--by", choices=("own", "total"), default="own", help="default: %(default)s"
    )
    parser.add_argument("-n", type=int, default=30, metavar="N", help="at most so many; default 30")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import pyarrow as pa

    before, after = (pstats_file.load(path)[0] for path in (args.before, args.after))
    rows = compare(before, after)
    rows.sort(key=lambda row: -abs(float(str(row[f"{args.by}_change_pct"]))))
    if not rows:
        rows = [dict.fromkeys(_COLUMNS)]
    write_rows(pa.Table.from_pylist(rows[: args.n]), args.format, args.output)
    return 0


_COLUMNS = ("func", "place", "own_before_pct", "own_after_pct", "own_change_pct",
            "total_before_pct", "total_after_pct", "total_change_pct", "calls_before",
            "calls_after")  # fmt: skip


_NONE: tuple[int, int, float, float, dict[pstats_file.Function, pstats_file.Numbers]] = (
    0,
    0,
    0.0,
    0.0,
    {},
)


def compare(before: pstats_file.Stats, after: pstats_file.Stats) -> list[dict[str, object]]:
    """One row per function. Shares of all own time: the two may have lasted differently long."""
    wholes = [sum(entry[2] for entry in stats.values()) or 1.0 for stats in (before, after)]
    rows: list[dict[str, object]] = []
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
