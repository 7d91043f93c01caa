"""Show requests and tasks: how long each route takes, the event loop, and the slowest ones."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import IO, Any

from sonde.analysis.code_fold import Step
from sonde.analysis.code_names import MINE, shorten_file
from sonde.analysis.request_stacks import (
    HOLDER,
    NEEDS,
    RequestStack,
    fold_holder,
    read_frames,
    read_stacks,
)
from sonde.analysis.window import find_window
from sonde.cli import _options, _table
from sonde.errors import Error
from sonde.store.recording import Recording, open_recording
from sonde.words import clean, show_duration

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
_MOST_LOOPS = 5  # the busiest
_MOST_STACKS, _MOST_PLACES = 500, 2  # that are looked at, and told
_LAST = "SELECT MAX(epoch_us(ts) + dur_ns // 1000 + 1) AS us FROM python.request"
_INSIDE = "epoch_ns(ts) BETWEEN {since} AND {until}"
_ROUTES = """
SELECT method, coalesce(route, '(no route)') AS route, COUNT(*) AS requests,
       SUM(dur_ns) / 1e6 AS total_ms, MEDIAN(dur_ns) / 1e6 AS median_ms,
       quantile_cont(dur_ns, 0.95) / 1e6 AS p95_ms, MAX(dur_ns) / 1e6 AS slowest_ms,
       COUNT(*) FILTER (status >= 500 OR error IS NOT NULL) AS failed, MAX(others) + 1 AS at_once
FROM python.request WHERE {inside} GROUP BY ALL ORDER BY {sort} DESC, route"""
_ALL = """
SELECT COUNT(*) AS requests, SUM(dur_ns) / 1e9 AS total_s, MAX(others) + 1 AS at_once,
       MIN(epoch_ns(ts)) AS first_ns, MAX(epoch_ns(ts) + dur_ns) AS last_ns,
       COUNT(*) FILTER (status >= 500 OR error IS NOT NULL) AS failed
FROM python.request WHERE {inside}"""
# BETWEEN: DuckDB 1.5 makes of `<= 2` a plan that it then fails to bind.
_SINGLE = """
SELECT ts, host, pid, thread, t_ns, method, coalesce(route, '(no route)') AS route, dur_ns, status,
       error, file, first_line
FROM python.request WHERE {inside}
QUALIFY row_number() OVER (PARTITION BY method, route ORDER BY dur_ns DESC) BETWEEN 1 AND 2
ORDER BY dur_ns DESC LIMIT {most}"""
# A callback that keeps the loop for longer than this makes others late. A row of python.event_loop
# is written at the end of its time; those count that share time with the requests.
_LONG_NS = 50_000_000
_LOOPS = """
WITH loop AS (
  SELECT host, pid, thread, SUM(wall_ns) AS wall_ns, SUM(idle_ns) AS idle_ns
  FROM python.event_loop
  WHERE epoch_ns(ts) > {first_ns} AND epoch_ns(ts) - wall_ns < {last_ns} GROUP BY ALL),
hold AS (
  SELECT host, pid, thread, t_ns + dur_ns - held_ns AS since_ns, SUM(dur_ns) AS dur_ns
  FROM python.loop_hold WHERE {inside} GROUP BY ALL HAVING SUM(dur_ns) >= {long}),
-- A callback may do several things in turn: the time of each sample is that of its own stack.
seen AS (
  SELECT s.host, s.pid, s.thread, s.t_ns - h.since_ns <= h.dur_ns AS is_inside, {stack} AS stack,
         s.wall_ns
  FROM python.stack_sample AS s ASOF JOIN hold AS h
    ON s.host = h.host AND s.pid = h.pid AND s.thread = h.thread AND s.t_ns > h.since_ns),
place AS (
  SELECT host, pid, thread, stack, SUM(wall_ns)::BIGINT AS held_ns
  FROM seen WHERE is_inside GROUP BY ALL),
places AS (
  SELECT host, pid, thread, LIST(stack ORDER BY held_ns DESC)[:{places}] AS stacks,
         LIST(held_ns ORDER BY held_ns DESC)[:{places}] AS sums
  FROM place GROUP BY ALL),
held AS (
  SELECT host, pid, thread, COUNT(*) AS times, SUM(dur_ns) AS held_ns, MAX(dur_ns) AS longest_ns
  FROM hold GROUP BY ALL)
SELECT pid, 100 * (1 - idle_ns / wall_ns) AS busy_pct, times, 100 * held_ns / wall_ns AS held_pct,
       longest_ns::BIGINT AS longest_ns, stacks, sums
FROM loop SEMI JOIN (FROM python.request WHERE {inside}) USING (host, pid)
LEFT JOIN held USING (host, pid, thread) LEFT JOIN places USING (host, pid, thread)
WHERE wall_ns > 0 ORDER BY busy_pct DESC"""
_KINDS = {
    "method": "string", "route": "string", "requests": "int64", "total_ms": "float64",
    "median_ms": "float64", "p95_ms": "float64", "slowest_ms": "float64", "failed": "int64",
    "at_once": "int64",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(
        parser, "the recording to look at; its setting source.request must have been on"
    )
    _options.add_window(parser)
    parser.add_argument("--sort", choices=tuple(_SORTS), default="total", metavar="COLUMN",
                        help="what comes first: %(choices)s (default: %(default)s)")  # fmt: skip
    _options.add_format(parser)
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    with open_recording(args.target).freeze(_ROUTES + _LOOPS + NEEDS) as recording:
        window = find_window(recording, args.since, args.until, last=_LAST)
        words = {
            "inside": _INSIDE.format(since=window.since_ns, until=window.until_ns),
            "sort": _SORTS[args.sort], "most": _SLOWEST, "long": _LONG_NS, "stack": HOLDER,
            "places": _MOST_STACKS,
        }  # fmt: skip
        routes = recording.query(_ROUTES.format(**words)).to_pylist()
        if not routes:
            raise Error(_explain_nothing(args.target, recording))
        if args.format != "table":
            _table.write_records(routes, _KINDS, args.format, args.output)
            return 0
        (whole,) = recording.query(_ALL.format(**words)).to_pylist()
        loops, slowest = (
            recording.query(sql.format(**words, **whole)).to_pylist() for sql in (_LOOPS, _SINGLE)
        )
        stacks = read_stacks(recording, slowest)
        frames = read_frames(recording, {one for loop in loops for one in loop["stacks"] or ()})
    folder = recording.sessions[0].meta.cwd
    for loop in loops:
        loop["where"] = [
            _name_chain(fold_holder(stack, frames), folder, 2) for stack in loop["stacks"] or ()
        ]

    def draw(file: IO[str]) -> None:
        _draw_sums(whole, routes, loops, file)
        _draw_slowest(list(zip(slowest, stacks, strict=True)), folder, file)

    _table.write_text(args.output, draw)
    return 0


def _explain_nothing(target: str, recording: Recording) -> str:
    values = recording.sessions[-1].read_config()
    if not values["source.request"]:
        if all(one.find_state() != "running" for one in recording.sessions):
            return (
                "requests were not recorded here; SONDE_SOURCE_REQUEST=on, or `sonde run --set "
                "source.request=on PROGRAM`, records them from the start"
            )
        return (
            "requests are not recorded here; `sonde config "
            f"{target} source.request=on` starts it, SONDE_SOURCE_REQUEST=on from the beginning"
        )
    job = recording.sessions[-1].meta.job
    rest = (
        f"; `sonde requests {job}` asks all processes of its job" if job and job != target else ""
    )
    return (
        "in that time no request was answered by an application of Django, Flask, FastAPI or "
        "Starlette, or of WSGI or ASGI under Daphne, Gunicorn, Hypercorn, Uvicorn, Waitress or "
        f"wsgiref, no task of Celery ended, and no actor of Ray was called{rest}"
    )


def _draw_sums(
    whole: dict[str, Any], routes: list[dict[str, Any]], loops: list[dict[str, Any]], file: IO[str]
) -> None:
    span_s = max(whole["last_ns"] - whole["first_ns"], 1) / 1e9
    lines = [
        f"{whole['requests']:,} requests in {show_duration(1e9 * span_s)}: "
        f"{whole['requests'] / span_s:.3g} a second, {whole['total_s'] / span_s:.2g} under way on "
        f"average and {whole['at_once']} at most in one process, {whole['failed']} failed",
        *map(_describe_loop, loops[:_MOST_LOOPS]),
    ]
    width = shutil.get_terminal_size().columns if file.isatty() else 10**6
    for line in lines:
        file.write(textwrap.fill(line, width, subsequent_indent="  ") + "\n")
    names = ("route", "requests", "total", "median", "95 %", "slowest", "failed", "at once")
    rows = [
        (f"{row['method'] or '?'} {row['route']}", row["requests"],
         *(show_duration(1e6 * row[name])
           for name in ("total_ms", "median_ms", "p95_ms", "slowest_ms")),
         row["failed"], row["at_once"])
        for row in routes
    ]  # fmt: skip
    file.write("\n")
    _table.draw_table(names, rows, file, [False, *[True] * 7])


def _describe_loop(loop: dict[str, Any]) -> str:
    text = f"the event loop of {loop['pid']} was busy {loop['busy_pct']:.0f} % of the time"
    if not loop["times"]:
        return f"{text}, and no callback kept it for long"
    sums: dict[str, int] = {}  # different stacks may have the same lines of the user's own
    for held_ns, where in zip(loop["sums"] or (), loop["where"], strict=True):
        sums[where] = sums.get(where, 0) + held_ns
    ranked = sorted(sums.items(), key=lambda item: -item[1])[:_MOST_PLACES]
    places = "; ".join(f"{show_duration(held_ns)} {where}" for where, held_ns in ranked)
    return clean(
        f"{text}; {loop['times']} callback{'s' * (loop['times'] != 1)} kept it for "
        f"{_LONG_NS // 10**6} ms or more, {loop['held_pct']:.0f} % of the time and "
        f"{show_duration(loop['longest_ns'])} at most: {places}"
    )


def _draw_slowest(
    slowest: list[tuple[dict[str, Any], RequestStack]], folder: str | None, file: IO[str]
) -> None:
    file.write("\nthe slowest, and where each was most of the time\n")
    width = shutil.get_terminal_size().columns if file.isatty() else 10**6
    for row, stack in slowest:
        answer = row["error"] or row["status"]
        file.write(clean(
            f"{show_duration(row['dur_ns']):>8}  {row['ts'].astimezone():%H:%M:%S}  "
            f"pid {row['pid']}  {row['method'] or '?'} {row['route']}"
            f"{'' if answer is None else f'  {answer}'}"
        ) + "\n")  # fmt: skip
        for line in _describe_stack(row, stack, folder):
            text = textwrap.fill(
                clean(line), width, initial_indent=" " * 10, subsequent_indent=" " * 12
            )
            file.write(text + "\n")


def _describe_stack(row: dict[str, Any], stack: RequestStack, folder: str | None) -> Iterator[str]:
    if stack.steps:
        waits = "waiting " if stack.waiting_ns > stack.time_ns / 2 else ""
        yield f"{show_duration(stack.time_ns)} {waits}in {_name_chain(stack.steps, folder, 3)}"
    most = row["dur_ns"] / 4
    if stack.holder and stack.held_ns > most:
        who = _name_chain(stack.holder, folder, 2)
        yield f"{show_duration(stack.held_ns)} while others kept the event loop, mostly {who}"
    elif (rest_ns := row["dur_ns"] - stack.seen_ns) > most:
        rest = show_duration(rest_ns)
        yield f"{rest} not seen in its function: awaiting, in the framework, or not sampled"


def _name_chain(steps: Sequence[Step], folder: str | None, most: int) -> str:
    """Return the innermost place first: that is the one that somebody can change."""
    own = [step for step in steps if step.owner == MINE]
    called = [] if not steps or steps[-1].owner == MINE else [steps[-1].name]
    places = [f"{one.name} ({shorten_file(one.file, folder)}:{one.line})" for one in own]
    return ", called by ".join([*called, *places[: -most - 1 : -1]])
