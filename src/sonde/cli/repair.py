"""Repair Chrome traces of other tools and write them as one trace that viewers open."""

from __future__ import annotations

import argparse
import sys
from typing import IO, Any

from sonde.analysis.timeline import Lane
from sonde.errors import Error
from sonde.export.files import write_with
from sonde.export.repair import RepairedTrace, merge

GROUP = "export"
EXAMPLES = (
    "sonde repair damaged.json -o repaired.json",
    "sonde repair rank0.json.gz rank1.json.gz -o both.pftrace",
)
_MANY = 20  # kinds of repairs that are listed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a trace in JSON, compressed or not"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True,
        help="the trace to write: .json, .json.gz, or .pftrace for Perfetto",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    traces = [RepairedTrace(path) for path in args.files]
    rows = list(merge(traces))
    times = [row.start_ns for row in rows if not isinstance(row, Lane)]
    if not times:
        raise Error(f"{args.files[0]}: no event in it could be read")
    _write(args.output, rows, min(times))
    for trace in traces:
        _print_summary(trace)
    return 0


def _write(path: str, rows: list[Any], start_ns: int) -> None:
    from sonde.export.formats import chrome, perfetto

    bare = path.removesuffix(".gz")
    exporter: Any = perfetto if bare.endswith((".pftrace", ".perfetto-trace")) else chrome

    def write(file: IO[Any]) -> None:
        writer = exporter.TraceWriter(file, start_ns)
        writer.begin()
        for row in rows:
            if isinstance(row, Lane):
                writer.declare(row)
        for row in rows:
            if not isinstance(row, Lane):
                writer.add(row)
        writer.end()

    write_with(path, exporter.TEXT, path.endswith(".gz"), write)


def _print_summary(trace: RepairedTrace) -> None:
    """Say on stderr what was repaired."""
    for what, count in trace.repairs.most_common(_MANY):
        times = f"{count} times: " if count > 1 else ""
        print(f"{trace.path}: {times}{what}", file=sys.stderr)
    if not trace.repairs:
        print(f"{trace.path}: nothing to repair", file=sys.stderr)
