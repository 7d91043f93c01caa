"""`sonde top` of a whole job: what all ranks do, and who is the fastest and the slowest at it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import IO

from sonde.analysis.code_names import shorten_file
from sonde.analysis.rank_loads import (
    RankLoad,
    find_extremes,
    list_missing_ranks,
    read_loads,
    sum_units,
)
from sonde.cli import _table
from sonde.cli._recordings import open_any, tell_missing_hosts
from sonde.errors import NoSession
from sonde.words import (
    count_things,
    find_pct,
    shorten_func,
    show_duration,
    show_duration_short,
    show_ranges,
    show_share,
)

_MOST = 40  # functions on a terminal
_RECORDS = {
    "host": "string", "rank": "int64", "pid": "int64", "self_pct": "float64",
    "total_pct": "float64", "self_ns": "int64", "total_ns": "int64", "func": "string",
    "file": "string", "line": "int64", "step_ns": "float64", "working_pct": "float64",
    "waiting_pct": "float64", "cpu_pct": "float64",
}  # fmt: skip


def show_ranks(args: argparse.Namespace, window_s: float | None) -> int:
    """Show what the processes of a cluster or a shared place did in a window."""
    recording = open_any(args.target, args.timeout)
    loads = read_loads(recording, window_s, args.by, args.view, idle=args.idle)
    if not any(load.units for load in loads):
        raise NoSession(f"{args.target} has no samples in the last {args.window}: it was idle or "
                        "nothing was shipped; --idle and --window start show more")  # fmt: skip
    if args.format == "table":
        _table.write_text(args.output, lambda file: _draw(loads, args.window, file))
    else:
        _table.write_records(_list_records(loads), _RECORDS, args.format, args.output)
    return tell_missing_hosts(recording)


def _list_records(loads: Sequence[RankLoad]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for load in loads:
        one = load.session
        whose = {
            "host": one.host,
            "rank": one.rank,
            "pid": one.pid,
            "step_ns": load.step_ns,
            **{f"{name}_pct": round(find(load) or 0.0, 2) for name, find in _SHARES.items()},
        }
        for unit, (own, total) in sorted(load.units.items(), key=lambda item: -item[1][0]):
            found.append({
                **whose, **unit._asdict(), "self_ns": own, "total_ns": total,
                "self_pct": round(find_pct(own, load.whole_ns), 2),
                "total_pct": round(find_pct(total, load.whole_ns), 2),
            })  # fmt: skip
    return found


_SHARES: dict[str, Callable[[RankLoad], float | None]] = {
    "working": lambda load: find_pct(load.working_ns, load.span_ns),
    "waiting": lambda load: find_pct(load.waiting_ns, load.span_ns),
    "cpu": lambda load: find_pct(load.cpu_ns, load.span_ns),
}
_Line = tuple[str, Callable[[float], str], Callable[[RankLoad], float | None]]
_WORDS = {"working": "working, all threads", "waiting": "waiting, main thread", "cpu": "CPU"}


def _draw(loads: Sequence[RankLoad], window: str, file: IO[str]) -> None:
    hosts = len({load.session.host for load in loads})
    span = "since their start" if window == "start" else f"the last {window}"
    file.write(f"{count_things(len(loads), 'process')} on {count_things(hosts, 'host')}, {span}\n")
    missing = list_missing_ranks(loads)
    if missing:
        file.write(f"no recording of rank {show_ranges(missing)}\n")
    file.write("\n")
    _draw_extremes(loads, file)
    _draw_units(loads, file)


def _draw_extremes(loads: Sequence[RankLoad], file: IO[str]) -> None:
    rows = []
    lines: list[_Line] = [("a step", show_duration, lambda load: load.step_ns),
             *((_WORDS[name], _show_pct, find) for name, find in _SHARES.items())]  # fmt: skip
    for name, show, find in lines:
        found = find_extremes((find(load), load) for load in loads)
        if found is not None:
            rows.append(
                (
                    name,
                    show(found.middle),
                    _name(show, found.least, found.least_of),
                    _name(show, found.most, found.most_of),
                    _show_pct(found.spread_pct),
                )
            )
    if rows:
        fast = rows[0][0] == "a step"
        names = ("", "median", "fastest" if fast else "least", "slowest" if fast else "most",
                 "spread")  # fmt: skip
        _table.draw_table(names, rows, file, [False, True, False, False, True])
        file.write("\n")


def _name(show: Callable[[float], str], value: float, load: RankLoad) -> str:
    host = "" if load.session.rank is None else f", {load.session.host}"
    return f"{show(value)} ({load.name}{host})"


def _draw_units(loads: Sequence[RankLoad], file: IO[str]) -> None:
    whole, folder = sum(load.whole_ns for load in loads), loads[0].session.meta.cwd
    found = sorted(sum_units(loads).items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))
    shown = found[:_MOST] if file.isatty() else found
    rows = []
    for unit, (own, total) in shown:
        ends = find_extremes((load.find_self_pct(unit), load) for load in loads)
        least, most = ("", "") if ends is None else (
            f"{ends.least:.1f} % {ends.least_of.name}", f"{ends.most:.1f} % {ends.most_of.name}"
        )  # fmt: skip
        rows.append(
            (
                show_share(own, whole),
                show_share(total, whole),
                show_duration_short(own),
                shorten_func(unit.func),
                f"{shorten_file(unit.file, folder)}:{unit.line}",
                least,
                most,
            )
        )
    names = ("self %", "total %", "self", "function", "where", "least self", "most self")
    _table.draw_table(names, rows, file, [True, True, True, False, False, False, False])
    if len(shown) < len(found):
        file.write(f"… and {len(found) - len(shown)} more: -o FILE has all of them\n")


def _show_pct(percent: float) -> str:
    return f"{percent:.0f} %"
