"""Show the requests of a web application: how long each route takes, and the slowest ones."""

from __future__ import annotations

import argparse
from typing import IO, Any

from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.errors import Error
from sonde.store.recording import Recording, open_recording
from sonde.words import show_duration, show_moment

GROUP = "ask"
EXAMPLES = (
    "sonde requests gunicorn",
    "sonde requests 4242 --since 5min --sort slowest",
)
_SORTS = {
    "total": "total_ms",
    "requests": "requests",
    "slowest": "slowest_ms",
    "median": "median_ms",
}
_SLOWEST = 5
_INSIDE = "epoch_ns(ts) BETWEEN {since} AND {until}"
_ROUTES = """
SELECT method, coalesce(route, '(no route)') AS route, COUNT(*) AS requests,
       SUM(dur_ns) / 1e6 AS total_ms, MEDIAN(dur_ns) / 1e6 AS median_ms,
       quantile_cont(dur_ns, 0.95) / 1e6 AS p95_ms, MAX(dur_ns) / 1e6 AS slowest_ms,
       COUNT(*) FILTER (status >= 500 OR error IS NOT NULL) AS failed, MAX(others) + 1 AS at_once
FROM python.request WHERE {inside} GROUP BY ALL ORDER BY {sort} DESC, route"""
_SINGLE = """
SELECT ts, pid, thread, method, coalesce(route, '(no route)') AS route, dur_ns, status, error
FROM python.request WHERE {inside} ORDER BY dur_ns DESC LIMIT {most}"""
_KINDS = {
    "method": "string", "route": "string", "requests": "int64", "total_ms": "float64",
    "median_ms": "float64", "p95_ms": "float64", "slowest_ms": "float64", "failed": "int64",
    "at_once": "int64",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(
        parser, "the recording to look at; it must have begun with source.request=on"
    )
    _options.add_window(parser)
    parser.add_argument("--sort", choices=tuple(_SORTS), default="total", metavar="COLUMN",
                        help="what comes first: %(choices)s (default: %(default)s)")  # fmt: skip
    _options.add_format(parser)
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    with open_recording(args.target).freeze(_ROUTES + _SINGLE) as recording:
        window = find_window(recording, args.since, args.until)
        inside = _INSIDE.format(since=window.since_ns, until=window.until_ns)
        sql = _ROUTES.format(inside=inside, sort=_SORTS[args.sort])
        routes = recording.query(sql).to_pylist()
        slowest = recording.query(_SINGLE.format(inside=inside, most=_SLOWEST)).to_pylist()
    if not routes:
        raise Error(_explain_nothing(args.target, recording))
    if args.format != "table":
        _table.write_records(routes, _KINDS, args.format, args.output)
    else:
        _table.write_text(args.output, lambda file: _draw(routes, slowest, file))
    return 0


def _explain_nothing(target: str, recording: Recording) -> str:
    values = recording.sessions[-1].read_config()
    if not values["source.request"]:
        return (
            "requests are not recorded here; `sonde config "
            f"{target} source.request=on` starts it, SONDE_SOURCE_REQUEST=on from the beginning"
        )
    return (
        "no request was answered in that time by an application of Django, Flask, FastAPI or "
        "Starlette"
    )


def _draw(routes: list[dict[str, Any]], slowest: list[dict[str, Any]], file: IO[str]) -> None:
    names = ("route", "requests", "total", "median", "95 %", "slowest", "failed", "at once")
    rows = [
        (f"{row['method'] or '?'} {row['route']}", row["requests"],
         *(show_duration(1e6 * row[name])
           for name in ("total_ms", "median_ms", "p95_ms", "slowest_ms")),
         row["failed"], row["at_once"])
        for row in routes
    ]  # fmt: skip
    _table.draw_table(names, rows, file, [False, *[True] * 7])
    file.write("\nthe slowest\n")
    single = [
        (show_duration(row["dur_ns"]), show_moment(round(row["ts"].timestamp() * 1e9)), row["pid"],
         row["thread"], f"{row['method'] or '?'} {row['route']}", row["error"] or row["status"])
        for row in slowest
    ]  # fmt: skip
    heads = ("took", "began", "pid", "thread", "request", "answer")
    _table.draw_table(heads, single, file, [True, False, True, True, False, False])
