"""What every process of a job is doing now, as rows: one per process, wherever it runs.

A row is plain values, so that it can come from another machine: see PROCESS. Its threads and
collectives are rows of their own inside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sonde import _core
from sonde.errors import Error
from sonde.session import Session, stack_table, steering
from sonde.session import texts as intern
from sonde.session.ending import find_ending
from sonde.session.ring import SUFFIX, Ring
from sonde.session.target import find_workers

Row = dict[str, Any]
# The columns of a row and of its inner rows, with their types.
PROCESS = {
    "host": "text", "pid": "i64", "rank": "i64", "world_size": "i64", "job": "text",
    "is_child": "bool", "command": "text", "cwd": "text", "alive": "bool", "note": "text",
    "threads": "rows", "collectives": "rows",
}  # fmt: skip
THREAD = {
    "thread": "i64", "name": "text", "idle": "bool", "gil": "bool", "wait": "text",
    "lasted_ns": "i64", "has_run": "bool", "stack": "text",
}  # fmt: skip
COLLECTIVE = {
    "group_name": "text", "group_desc": "text", "group_ranks": "text", "op": "text",
    "entered": "i64", "finished": "i64", "pending": "i64", "lasted_ns": "i64",
}  # fmt: skip
_TABLE = "python.collective"
_NEWEST = 2048  # rows of collectives that are looked at
_APART_NS = 60 * 10**9  # ranks of one launch begin within that time
_MOST_RANKS = 10**6


def choose_current(sessions: Sequence[Session]) -> list[Session]:
    """Return what runs, and the ranks that began with it and have ended: not earlier launches of
    the same name, nor children that have done their work, nor what a restarted rank was before."""
    alive = [session for session in sessions if session.is_alive()]
    begin_ns = min((session.start_wall_ns for session in alive), default=0) - _APART_NS
    workers = find_workers(sessions)
    # A worker that outlives its rank does not stand for it.
    running = {(one.meta.job, one.rank) for one in alive if one.id not in workers}
    ended: dict[tuple[str | None, int | None], Session] = {}
    for one in sorted(sessions, key=lambda session: session.start_wall_ns):
        is_rank = one.rank is not None and one.id not in workers
        is_new = one not in alive and one.start_wall_ns > begin_ns
        if is_rank and is_new and (one.meta.job, one.rank) not in running:
            ended[one.meta.job, one.rank] = one  # of several, the last
    return [*alive, *ended.values()]


def drop_replaced(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all hosts without ranks that have ended on one and run on another now."""
    running = {(row["job"], row["rank"]) for row in rows if row["alive"] and not row["is_child"]}
    return [row for row in rows if row["alive"] or (row["job"], row["rank"]) not in running]


def read_processes(sessions: Sequence[Session], timeout_s: float) -> list[Row]:
    """Have every live process sampled, and return a row for each session."""
    workers = find_workers(sessions)
    live = {session.folder for session in sessions if session.is_alive()}
    late = steering.sample_all([one for one in sessions if one.folder in live], timeout_s)
    found = []
    for session in sessions:
        alive = session.folder in live
        notes = [late[session.folder]] if session.folder in late else []
        threads: list[Row] = []
        collectives: list[Row] = []
        try:
            if alive:
                threads, collectives = _read_threads(session), _read_collectives(session)
            else:
                notes.append(_describe_end(session))
        except (Error, OSError) as error:
            notes.append(f"it cannot be read: {error}")
        meta = session.meta
        found.append({
            "host": session.host, "pid": session.pid, "rank": session.rank,
            "world_size": meta.world_size, "job": meta.job, "is_child": session.id in workers,
            "command": " ".join(meta.argv), "cwd": meta.cwd, "alive": alive,
            "note": "; ".join(notes) or None, "threads": threads, "collectives": collectives,
        })  # fmt: skip
    return found


def _describe_end(session: Session) -> str:
    ending = find_ending(session)
    return "it is on another machine, or gone" if ending is None else f"it {ending.sentence}"


def _read_threads(session: Session) -> list[Row]:
    try:
        stacks = stack_table.read_newest(session)
    except FileNotFoundError:
        raise Error("its stacks are not recorded") from None
    return [
        {
            "thread": one.thread, "name": one.name, "idle": one.idle, "gil": one.gil,
            "wait": one.wait,
            "lasted_ns": None if one.since_ns is None else one.t_ns - one.since_ns,
            "has_run": one.has_run,
            "stack": json.dumps([[frame.func, frame.file, frame.line] for frame in one.frames]),
        }
        for one in stacks
    ]  # fmt: skip


def _read_collectives(session: Session) -> list[Row]:
    """Return, for each group, the newest collective that was requested, the newest that is
    complete, and the oldest that is not."""
    path = session.path(_TABLE + SUFFIX)
    try:
        ring = Ring(path)
    except FileNotFoundError:
        return []  # it has no torch, or its rows are archived
    batch = ring.read(max(0, ring.head - _NEWEST))
    names = [field.name for field in ring.schema.fields]
    columns = dict(zip(names, stack_table.read_columns(ring, batch), strict=True))
    texts = intern.read_texts(session.folder)

    def text(name: str, at: int) -> str | None:
        number = columns[name][at]
        return texts[number] if 0 <= number < len(texts) else None

    groups: dict[int, list[int]] = {}
    for at, group in enumerate(columns["group_name"]):
        if columns["seq"][at] > 0:
            groups.setdefault(group, []).append(at)
    return [_sum_group(places, columns, text) for places in groups.values()]


def _sum_group(places: list[int], columns: dict[str, list[int]], text: Any) -> Row:
    numbers = columns["seq"]
    ended = {numbers[at] for at in places if text("state", at) != "running"}
    running = [at for at in places if numbers[at] not in ended]
    oldest = min(running, key=lambda at: numbers[at], default=None)
    newest = max(places, key=lambda at: numbers[at])
    shown = newest if oldest is None else oldest
    known = (text("group_ranks", at) for at in reversed(places))
    return {
        "group_name": text("group_name", newest), "group_desc": text("group_desc", newest),
        "group_ranks": next(filter(None, known), None),
        "op": text("op", shown),
        "entered": numbers[newest], "finished": max(ended, default=0),
        "pending": None if oldest is None else numbers[oldest],
        "lasted_ns": None if oldest is None else _core.clock_ns() - columns["t_ns"][oldest],
    }  # fmt: skip


def list_missing(rows: Iterable[Row]) -> list[int]:
    """Return the ranks that a job should have, as its processes say, and that no row is of."""
    known = list(rows)
    size = max((row["world_size"] or 0 for row in known), default=0)
    return sorted(set(range(min(size, _MOST_RANKS))) - {row["rank"] for row in known})
