"""Watch a process live: functions, lines, threads, stacks and the GIL."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from typing import IO, Any

from sonde import settings
from sonde.cli import _options, _table
from sonde.cli._missing import tell_missing
from sonde.cli._terminal import fill
from sonde.cli._visit import open_sessions
from sonde.errors import ConfigError
from sonde.fleet.hosts import find_cluster
from sonde.session import Session, files
from sonde.tui.page import Choice, list_own_shares, make_page, measure, show_window
from sonde.tui.process import LONGEST_S, TopProcess, open_processes
from sonde.tui.team import Member, find_members, sum_shares
from sonde.words import shorten_func, show_duration_short, show_share

GROUP = "watch"
EXAMPLES = (
    "sonde top 4242                          a live screen; h lists its keys",
    "sonde top gunicorn --once               all workers: their sum, and who differs",
    "sonde top train-7@slurm                 all ranks: the fastest, the slowest, the spread",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_target(parser, "the processes to watch, recorded or not; of a cluster or a "
                        "shared place, one table of all ranks", cluster=True)  # fmt: skip
    parser.add_argument("--view", choices=("functions", "lines", "threads"), default="functions",
                        help="what to show first (default: %(default)s)")  # fmt: skip
    _options.add_by(parser)
    parser.add_argument(
        "--window", "--since", default="5s", metavar="SPAN",
        help="how much of the past counts: 1s to 5min, or start (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--idle", action="store_true",
                        help="also count threads that slept or waited")  # fmt: skip
    parser.add_argument("--once", action="store_true",
                        help="print one table and exit, as in a pipe")  # fmt: skip
    _options.add_cluster_timeout(parser)
    _options.add_format(parser)
    _options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    window_s = _read_window(args.window)
    if _is_elsewhere(args.target):
        from sonde.cli._rank_loads import show_ranks  # only here: it needs Arrow

        return show_ranks(args, window_s)
    with open_sessions(args.target) as (sessions, is_new):
        return _show(sessions, Choice(args.view, args.by, window_s, args.idle), args, is_new)


def _show(sessions: list[Session], choice: Choice, args: argparse.Namespace, is_new: bool) -> int:
    plain = args.once or args.output or args.format != "table"
    if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
        if is_new:
            span_s = min(choice.window_s or _LOOK_S, _LOOK_S)
            told = f"process {args.target} is not recorded: it is watched for {span_s:g} s"
            print(f"sonde: {told}", file=sys.stderr)
            time.sleep(span_s)
        return _print_once(open_processes(sessions), choice, args)
    from sonde.tui.screen import Top  # Textual takes a third of a second

    processes = open_processes(sessions)
    if len(processes) > 1:
        choice = Choice("processes", args.by, choice.window_s, args.idle)
    Top(processes, choice).run()
    return 0


def _is_elsewhere(target: str) -> bool:
    """Tell whether a target is of a cluster or a shared place: known by its tables alone."""
    if "@" in target and find_cluster(target) is not None:
        return True
    if ("/" not in target and "#" not in target) or os.path.exists(f"{target}/{files.META}"):
        return False
    from sonde.store.place import is_place  # only here: it takes Arrow, which not all have

    return is_place(target)


def _read_window(text: str) -> float | None:
    if text == "start":
        return None
    try:
        span_s = settings.parse_duration(text)
    except (KeyError, ValueError):
        span_s = 0.0
    if not _SHORTEST_S <= span_s <= LONGEST_S:
        raise ConfigError(
            f"--window={text} is neither a time from 1s to 5min nor `start`; any other stretch of "
            "time: `sonde tree TARGET --since … --until …`"
        )
    return span_s


def _print_once(processes: list[TopProcess], choice: Choice, args: argparse.Namespace) -> int:
    rows = [row for process in processes for row in _list_rows(process, choice)]
    if not rows:
        notes = {make_page(choice, process, processes).note for process in processes}
        print(f"sonde: {'; '.join(sorted(filter(None, notes)))}", file=sys.stderr)
    kinds = _THREADS if choice.view == "threads" else _SHARES
    if len(processes) > 1:
        kinds = {"rank": "int64", "pid": "int64", **kinds}
    if args.format != "table" or choice.view == "threads":
        _table.write_records(rows, kinds, args.format, args.output)
    else:
        _table.write_text(args.output, lambda file: _draw(processes, choice, file))
    tell_missing(process.session for process in processes)
    return 0


_SHORTEST_S = 1.0
_LOOK_S = 5.0  # how long a process is watched that is not recorded
_MOST, _FEWEST = 40, 10  # functions on a terminal, however large it is
_LEAST_NS = 500_000  # of a function's own time that is shown as more than 0 ms
_SHARES = {
    "self_pct": "float64", "total_pct": "float64", "self_ns": "int64", "total_ns": "int64",
    "func": "string", "file": "string", "line": "int64",
}  # fmt: skip
_THREADS = {
    "busy_pct": "float64", "cpu_pct": "float64", "gil_pct": "float64", "now": "string",
    "thread": "int64", "name": "string", "func": "string", "file": "string", "line": "int64",
}  # fmt: skip


def _list_rows(process: TopProcess, choice: Choice) -> list[dict[str, Any]]:
    whose = {"rank": process.session.rank, "pid": process.session.pid}
    rows = (
        _list_threads(process, choice) if choice.view == "threads" else _list_units(process, choice)
    )
    return [{**whose, **row} for row in rows]


def _list_units(process: TopProcess, choice: Choice) -> list[dict[str, Any]]:
    weighed = measure(choice, process)
    found = list_own_shares(choice, weighed)
    return [
        {
            "self_pct": _round_pct(share.self_ns, weighed.whole),
            "total_pct": _round_pct(share.total_ns, weighed.whole),
            "self_ns": share.self_ns, "total_ns": share.total_ns, **share.unit._asdict(),
        }
        for share in sorted(found, key=lambda share: (-share.self_ns, -share.total_ns, share.unit))
    ]  # fmt: skip


def _list_threads(process: TopProcess, choice: Choice) -> list[dict[str, Any]]:
    window_s = choice.window_s or LONGEST_S
    span = process.find_span(window_s)
    found = []
    for load in sorted(process.list_loads(window_s), key=lambda load: -load.busy_ns):
        unit = process.tree.by_line.names[process.tree.by_line.of[load.place]]
        found.append({
            "busy_pct": _round_pct(load.busy_ns, span), "cpu_pct": _round_pct(load.cpu_ns, span),
            "gil_pct": _round_pct(load.gil_ns, span), "now": load.now, "thread": load.thread,
            "name": load.name, **unit._asdict(),
        })  # fmt: skip
    return found


# ---- for people ----------------------------------------------------------------------------------


def _draw(processes: list[TopProcess], choice: Choice, file: IO[str]) -> None:
    """Draw what each process did, and the functions of one, or of several as a sum."""
    folder = processes[0].folder
    members = find_members(processes, choice.window_s)
    span = _show_span(processes, choice.window_s)
    if len(members) == 1:
        head = _describe_one(members[0], span, choice.window_s or LONGEST_S)
    else:
        _draw_members(members, choice, span, file)
        head = f"the sum of {len(processes)} processes, {show_window(choice.window_s)}"
    file.write(fill(head, file) + "\n")
    if len(members) == 1 and span != show_window(choice.window_s):
        file.write(f"\n{show_window(choice.window_s)}\n")
    found, whole = sum_shares(processes, choice)
    found.sort(key=lambda share: (-share.self_ns, -share.total_ns, share.unit))
    rows = [
        (show_share(share.self_ns, whole), show_share(share.total_ns, whole),
         show_duration_short(share.self_ns), shorten_func(share.unit.func),
         share.unit.show_place(folder))
        for share in found
    ]  # fmt: skip
    names = ("self %", "total %", "self", "function", "where")
    shown = rows
    if file.isatty():  # what has no time of its own is there as a caller alone
        lines = shutil.get_terminal_size().lines - len(processes) - 8
        count = sum(share.self_ns >= _LEAST_NS for share in found)
        shown = rows[: min(_MOST, max(_FEWEST, lines), max(1, count))]
    _table.draw_table(names, shown, file, [True, True, True, False, False])
    if len(shown) < len(rows):
        file.write(f"… and {len(rows) - len(shown)} more: -o FILE has all of them\n")


def _show_span(processes: list[TopProcess], window_s: float | None) -> str:
    """Return the time that the processes are compared over: samples are kept for so long."""
    is_all = window_s is None and all(one.age_s <= LONGEST_S for one in processes)
    return show_window(None if is_all else window_s or LONGEST_S)


def _describe_one(member: Member, span: str, window_s: float) -> str:
    """Return what a process did as a sentence: how much of it the table below leaves out."""
    process, wait = member.process, member.wait
    cpu = process.find_cpu_pct(window_s)
    used = "" if cpu is None else f" (CPU {cpu:.0f} %)"
    text = f"pid {process.session.pid}, {span}: {member.working_pct:.0f} % working{used}, "
    text += f"{member.waiting_pct:.0f} % waiting"
    if wait is None or member.waiting_pct < 1:
        return text
    place = f"{shorten_func(wait.func)} ({wait.show_place(process.folder)})"
    return f"{text}, most of that in {place}: `sonde tree`"


def _draw_members(members: list[Member], choice: Choice, span: str, file: IO[str]) -> None:
    file.write(f"each process, {span}\n")
    rows: list[tuple[object, ...]] = []
    for member in members:
        session, unit = member.process.session, member.unit
        cpu_pct = member.process.find_cpu_pct(choice.window_s or LONGEST_S)
        cpu = None if cpu_pct is None else f"{cpu_pct:.0f} %"
        more = "" if unit is None else f"{member.more_pct:+.0f} % in {shorten_func(unit.func)}"
        place = "" if unit is None else unit.show_place(member.process.folder)
        rows.append((
            session.rank, session.pid, cpu, f"{member.working_pct:.0f} %",
            f"{member.waiting_pct:.0f} %", more, place,
        ))  # fmt: skip
    names = ["rank", "pid", "CPU", "working", "waiting", "more than the others", "where"]
    nobody = all(member.unit is None for member in members)
    if nobody:
        names, rows = names[:-2], [row[:-2] for row in rows]
    if all(row[0] is None for row in rows):
        names, rows = names[1:], [row[1:] for row in rows]
    right = [name in ("rank", "pid", "CPU", "working", "waiting") for name in names]
    _table.draw_table(names, rows, file, right)
    file.write("nobody differs from the others\n\n" if nobody else "\n")


def _round_pct(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
