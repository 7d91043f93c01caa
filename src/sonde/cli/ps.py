"""List what is being recorded, and what was."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from sonde import environ, launch
from sonde.analysis.standstill import look_at
from sonde.cli import _options, _table
from sonde.cli._command_text import FORKED, fit_commands
from sonde.cli._crash_copies import unwind_copies
from sonde.cli._process_roles import find_parents, list_commands, read_title
from sonde.cli._terminal import fill
from sonde.collector.retention import measure_bytes
from sonde.errors import ConfigError, Error, NoSession
from sonde.fleet.hosts import find_cluster
from sonde.session import Session, list_folders, source_states
from sonde.session.ending import find_end_wall_ns, find_ending, wait_for_statuses
from sonde.session.files import find_refusal
from sonde.session.spawns import find_starters
from sonde.words import clean, count_things, shorten_command, show_bytes, show_duration

GROUP = "record"
EXAMPLES = (
    "sonde ps --running --long",
    "sonde ps @slurm                          every node of the job, with the offset of its clock",
    "sonde ps s3://bucket/sonde                what the hosts of a fleet have shipped there",
)
_COLUMNS = {
    "pid": "int64", "state": "string", "rank": "int64", "start_wall_ns": "int64", "dur_ns": "int64",
    "size_bytes": "int64", "command": "string", "session": "string", "folder": "string",
    "host": "string", "job": "string", "exit_code": "int64", "exit_signal": "string",
    "exit_reason": "string", "stands": "string", "started_by": "string",
    "title": "string", "parent": "string",
}  # fmt: skip


# What the agents of a cluster are asked; `clock` is added from the exchange with each of them.
_OF_HOSTS = """
SELECT host, pid, CASE WHEN paused THEN 'paused' ELSE state END AS state, rank, job, start_wall_ns,
       command, session, exit_reason
FROM sonde.session ORDER BY start_wall_ns"""
_COMMAND = 24  # columns that a command needs to be told from others
_OPTIONAL = ("size", "started_by", "started")  # what a narrow list can do without, in this order
_MOST_ALIKE = 6  # workers of a job that ended in order, each with a line
_MOST_REASONS = 3
_HELLOS = 4  # the fastest of them tells most about the clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", metavar="@CLUSTER|PLACE", nargs="?",
                        help="the hosts of a cluster, with their clocks; or a place that hosts "
                        "share (archive.to), PLACE#JOB or PLACE#JOB/RANK")  # fmt: skip
    _options.add_note(parser, _options.CLUSTER)
    parser.add_argument("-r", "--running", action="store_true", help="only live recordings")
    parser.add_argument("-l", "--long", action="store_true",
                        help="also show session ids and folders")  # fmt: skip
    _options.add_format(parser)
    _options.add_output(parser)
    _options.add_cluster_timeout(parser)


def run(args: argparse.Namespace) -> int:
    is_here = args.where is None
    if not is_here and (args.where.startswith("@") or find_cluster(args.where) is not None):
        return _list_cluster(args)
    root = environ.find_root() if is_here else args.where
    all_found, broken = _list_here(root) if is_here else (_list_place(root), [])
    is_wanted = ("running", "paused") if args.running else None
    found = [row for row in all_found if is_wanted is None or row["state"] in is_wanted]
    if args.format != "table":
        _table.write_records(found, _COLUMNS, args.format, args.output)
    elif found or args.output:
        for row in found:  # what cannot wait comes first
            if row["stands"]:
                print(fill(clean(f"process {row['pid']}: {row['stands']}"), sys.stdout))
        names = _choose_names(found, args.long)
        found = _put_jobs_together(_calm_workers(found))
        shown = [{**row, **_show(row)} for row in found]
        commands = list_commands(found, [row["command"] for row in shown])
        shown = [{**row, "command": one} for row, one in zip(shown, commands, strict=True)]
        shown = shown if args.long else _fold_workers(shown)
        _table.write_text(args.output, lambda file: _draw(names, shown, file))
        for line in _say_why(found):
            print(fill(clean(line), sys.stdout))
    else:
        print(_describe_none(root, all_found))
    for line in broken:  # what is wrong comes last, where it is seen
        print(f"sonde: {line}", file=sys.stderr)
    return 0


def _put_jobs_together(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows, which are in the order of their start, with each job's together and its ranks or
    pids in order. A job of one process that has no name of its own gets none: its pid says the
    same."""
    jobs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        jobs.setdefault(row["job"] or row["session"], []).append(row)
    found = []
    for job, alike in jobs.items():
        if len(alike) == 1 and job.endswith(f"-{alike[0]['pid']}"):
            found.append({**alike[0], "job": None})
        else:
            # Recordings of workers begin a moment after these, in any order.
            rest = sorted(alike[1:], key=lambda row: row["pid"])
            found += sorted(
                [alike[0], *rest], key=lambda row: -1 if row["rank"] is None else row["rank"]
            )
    return found


def _calm_workers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in which workers that SIGTERM has ended, or nobody saw what, are plainly ended if
    who started them has ended in order: that is how a pool ends its workers."""
    orderly = {row["session"] for row in rows if row["state"] == "ended" and not row["exit_code"]}
    starters = find_parents(rows)
    return [
        {**row, "word": None, "state": "ended"}
        if starters.get(row["session"]) in orderly
        and (row["exit_signal"] == "SIGTERM" or row["is_unseen"])
        else row
        for row in rows
    ]  # fmt: skip


def _fold_workers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the workers of a job that ended in order and look alike as one: a pool may
    have made many anew."""
    alike: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault((row["job"], row["state"], row["rank"], row["command"]), []).append(row)
    found = []
    for row in rows:
        those = alike[row["job"], row["state"], row["rank"], row["command"]]
        if len(those) <= _MOST_ALIKE or row["state"] != "ended" or row["job"] is None:
            found.append(row)
        elif row is those[0]:
            count = f"{row['command']} ({len(those)} of these; -l lists them)"
            if row["command"].startswith(FORKED):
                count = f"{FORKED} {len(those)} {row['command'][2:]} (-l: each)"
            size = show_bytes(sum(one["size_bytes"] or 0 for one in those))
            found.append({**row, "pid": None, "lasted": None, "size": size, "command": count})
    return found


def _say_why(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why the last ones ended that did not do so in order, where more is known than the
    table says in a word."""
    told = [row for row in rows if row["is_told"]]
    newest = sorted(told, key=lambda row: row["start_wall_ns"] + (row["dur_ns"] or 0))
    return [f"{row['pid']} {row['exit_reason']}" for row in newest[-_MOST_REASONS:]]


def _describe_none(root: str, found: Sequence[Mapping[str, Any]]) -> str:
    """Return why the list is empty, and what to do."""
    if not found:
        return f"nothing has been recorded in {root} yet; try `sonde run train.py`"
    ended = count_things(len(found), "recording")
    verb = "has" if len(found) == 1 else "have"
    return f"nothing is being recorded now; {ended} in {root} {verb} ended: `sonde ps` lists them"


def _draw(names: Sequence[str], rows: list[dict[str, Any]], file: IO[str]) -> None:
    """Draw the list. On a narrow terminal a job is named in full, as it must be typed, a command by
    what tells it from the others; what else finds no room is left out."""
    left_out: list[str] = []
    if file.isatty():
        width = shutil.get_terminal_size().columns
        cells = {name: [str(row[name] or "") for row in rows] for name in names}
        wide = {name: max(map(len, [name, *column])) for name, column in cells.items()}
        wide["command"] = min(wide["command"], _COMMAND)
        for name in _OPTIONAL:
            if name in names and sum(wide[one] + 2 for one in names) - 2 > width:
                names = [one for one in names if one != name]
                left_out.append(name)
        room = width - sum(wide[one] + 2 for one in names if one != "command")
        commands = fit_commands(cells["command"], max(room, _COMMAND))
        rows = [{**row, "command": one} for row, one in zip(rows, commands, strict=True)]
    shown = [[row[name] for name in names] for row in rows]
    _table.draw_table(names, shown, file, keep=("job",))
    if left_out:
        note = f"no room for {', '.join(left_out)}: --format json has all"
        file.write(fill(note, file) + "\n")


def _list_cluster(args: argparse.Namespace) -> int:
    cluster = find_cluster(args.where)
    if cluster is None:
        raise ConfigError(f"{args.where} is no cluster; write @hosts:NAME,NAME or see --help")
    # Only here: Flight takes a while to import.
    from sonde.cli._missing import show_answer
    from sonde.fleet.cluster import ask_all

    request = {"request": "query", "sql": _OF_HOSTS}
    found = ask_all(cluster, request, args.timeout, hellos=_HELLOS)
    found.require_some(cluster.target)
    rows = []
    for host, table in sorted(found.tables.items()):
        clock = found.clocks[host]
        ours = {"ahead_ns": clock.offset_ns, "ahead_error_ns": clock.error_ns, "asked": host}
        rows += [{**row, **ours} for row in table.to_pylist()]
    if args.running:
        rows = [row for row in rows if row["state"] in ("running", "paused")]
    kinds = {**{name: _COLUMNS[name] for name in ("host", "pid", "state", "rank", "job",
             "start_wall_ns", "command", "session", "exit_reason")}, "ahead_ns": "int64",
             "ahead_error_ns": "int64", "asked": "string"}  # fmt: skip
    return show_answer(found, lambda: _write_cluster(rows, kinds, args))


def _write_cluster(
    rows: list[dict[str, Any]], kinds: dict[str, str], args: argparse.Namespace
) -> None:
    if args.format != "table":
        _table.write_records(rows, kinds, args.format, args.output)
        return
    names = ("host", "pid", "state", "rank", "job", "started", "clock", "command")
    cells = [[_show_remote(row)[name] for name in names] for row in rows]
    _table.write_text(args.output, lambda file: _table.draw_table(names, cells, file))


def _show_remote(row: dict[str, Any]) -> dict[str, Any]:
    started = time.localtime(row["start_wall_ns"] / 1e9)
    ahead, error = row["ahead_ns"] / 1e6, row["ahead_error_ns"] / 1e6
    return {
        **row,
        "started": time.strftime("%H:%M:%S" if _is_today(started) else "%m-%d %H:%M", started),
        "clock": f"{ahead:+.1f} ± {error:.1f} ms",
        "command": shorten_command(_shorten(row["command"].split(" "))),
    }


def _list_here(root: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the recordings of this host, and what is wrong."""
    rows, broken, sessions = [], list[str](), list[Session]()
    refusal = find_refusal(root)
    if refusal is not None:
        raise NoSession(refusal)
    for folder in list_folders(root):
        try:
            sessions.append(Session(folder))
        except Error as error:
            broken.append(str(error))
    with suppress(Error):  # said below, of the session that it is about
        wait_for_statuses(sessions)
    for session in [*sessions]:
        try:
            rows.append((session.start_wall_ns, _describe(session)))
            broken += [*_miss_collector(session, root), *filter(None, [unwind_copies(session)])]
        except Error as error:
            broken.append(str(error))
            sessions.remove(session)
    starters = find_starters(sessions)
    for _start_ns, row in rows:
        if row["session"] in starters:
            row["started_by"] = "{}:{}".format(*starters[row["session"]])
    return [row for _start_ns, row in sorted(rows, key=lambda entry: entry[0])], broken


def _list_place(target: str) -> list[dict[str, Any]]:
    """Return what a shared place has."""
    from sonde.store.place import PlaceError, is_place  # these take Arrow, which not all have
    from sonde.store.shared_session import find_shared

    if not is_place(target):
        raise PlaceError(f"{target} is no place that recordings are shipped to; see archive.to")
    return [
        {
            **_describe_process(one),
            "state": one.find_state(),
            "dur_ns": one.end_wall_ns - one.start_wall_ns,
            "size_bytes": None,
            "stands": None,
            "title": None,
            **{name: one.row[name] for name in ("exit_code", "exit_signal", "exit_reason")},
            "word": None,
            "is_told": False,
            "is_unseen": False,
        }
        for one in find_shared(target)
    ]


def _miss_collector(session: Session, root: str) -> Iterator[str]:
    """Yield why nobody archives the rows of a live session, if nobody does."""
    if launch.has_collector(root) or not session.is_here() or not session.is_alive():
        return
    for row in source_states.read_states(session):
        if row["source"] == "collector" and row["state"] != "on":
            yield f"process {session.pid} has no collector: {row['detail']}"


def _choose_names(found: list[dict[str, Any]], is_long: bool) -> tuple[str, ...]:
    """Return the columns to show: ranks where there are some, the job where one has several
    processes."""
    jobs = [row["job"] for row in found if row["job"] is not None]
    ranks = ("rank",) if any(row["rank"] is not None for row in found) else ()
    job = ("job",) if len(set(jobs)) < len(jobs) else ()
    more = ("session", "folder") if is_long else ()
    # Where recordings of several hosts are shown, they have been shipped, and have no size here.
    host = ("host",) if len({row["host"] for row in found}) > 1 else ()
    size = ("size",) if any(row["size_bytes"] is not None for row in found) else ()
    by = ("started_by",) if any(row["started_by"] is not None for row in found) else ()
    return (*host, "pid", "state", *ranks, *job, "started", "lasted", *size, "command", *by, *more)


def _describe(session: Session) -> dict[str, Any]:
    state = session.find_state()
    sealed = session.read_sealed()
    if state == "running" and not session.read_control()["on"]:
        state = "paused"
    if sealed is not None:
        end: int | None = sealed.end_wall_ns
    elif state in ("running", "paused"):
        end = time.time_ns()
    else:
        end = None if state == "unknown" else find_end_wall_ns(session)
    return {
        **_describe_process(session),
        "state": state,
        "dur_ns": None if end is None else end - session.start_wall_ns,
        "size_bytes": measure_bytes(session.folder),
        "stands": _describe_standstill(session, state),
        "title": read_title(session),
        **_describe_end(session),
    }


def _describe_process(session: Session) -> dict[str, Any]:
    return {
        "pid": session.pid,
        "rank": session.rank,
        "start_wall_ns": session.start_wall_ns,
        "command": _shorten(session.meta.argv),
        "session": session.id,
        "folder": session.folder,
        "host": session.host,
        "job": session.meta.job,
        "started_by": None,
        "parent": session.meta.parent,
        "ppid": session.meta.ppid,
    }


def _describe_standstill(session: Session, state: str) -> str | None:
    """Return why nothing in a live process moves, if only a signal can free it."""
    if state != "running" or not session.shares_pids():
        return None
    found = look_at(session)
    if found is None:
        return None
    folder = session.meta.cwd
    return found.summary.replace(f"{folder}/", "") if folder else found.summary


def _describe_end(session: Session) -> dict[str, Any]:
    ending = find_ending(session)
    if ending is None:
        return {
            "exit_code": None, "exit_signal": None, "exit_reason": None, "word": None,
            "is_told": False, "is_unseen": False,
        }  # fmt: skip
    return {
        "exit_code": ending.code,
        "exit_signal": ending.signal,
        "exit_reason": ending.sentence,
        "word": ending.word,
        "is_told": (ending.exception or ending.call) is not None,
        "is_unseen": ending.is_unseen,
    }


def _show(row: dict[str, Any]) -> dict[str, str | None]:
    """Return times and sizes as people read them."""
    started, dur_ns = time.localtime(row["start_wall_ns"] / 1e9), row["dur_ns"]
    return {
        "state": row["word"] or row["state"],
        "started": time.strftime("%H:%M:%S" if _is_today(started) else "%m-%d %H:%M", started),
        "command": shorten_command(row["command"]),
        "started_by": None if row["started_by"] is None else os.path.basename(row["started_by"]),
        "lasted": None if dur_ns is None else show_duration(dur_ns),
        "size": None if row["size_bytes"] is None else show_bytes(row["size_bytes"]),
    }


def _shorten(argv: list[str]) -> str:
    """Return the command without the folder of its interpreter, which takes room."""
    words = [str(word) for word in argv]
    return " ".join([os.path.basename(words[0]), *words[1:]]) if words else ""


def _is_today(moment: time.struct_time) -> bool:
    return moment[:3] == time.localtime()[:3]
