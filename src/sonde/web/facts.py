"""What the page says in words: what is recorded, the verdict, stacks now, modules, the cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sonde import __version__
from sonde.analysis.code_names import SONDE, find_owner, shorten_file, skip_start
from sonde.analysis.modules import StepSelection, arrange, make_table, read_overhead, read_report
from sonde.analysis.source_lines import read_source
from sonde.analysis.wait_words import describe_lock, describe_wait
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.session import Session, stack_table
from sonde.session.ending import find_ended_by_parents, find_ending
from sonde.session.last_stacks import read_last_stacks
from sonde.session.lock_waits import add_locks, read_lock_waits
from sonde.session.native_stacks import add_native_frames
from sonde.session.stack_table import ThreadStack
from sonde.store.recording import Recording
from sonde.web.answer import PageAnswer, make_exact
from sonde.words import name_program

QUERY_S, QUERY_MEMORY, MOST_ROWS = 30.0, "1GiB", 2000
LONG_MODULES_NS, LATE_MODULES_NS = 7200 * 10**9, 600 * 10**9
_MOST_PROCESSES = 16  # whose stacks are shown at a time
_LOSS = """\
SELECT table_name, SUM(written)::BIGINT AS written, SUM(kept)::BIGINT AS kept,
    SUM(dropped + unfinished + overwritten + corrupt)::BIGINT AS lost,
    SUM(expired)::BIGINT AS expired, SUM(misfit + text_lost)::BIGINT AS damaged
FROM sonde.loss GROUP BY table_name ORDER BY lost DESC, table_name"""
_SAMPLING = """\
SELECT host, pid, MAX(cpu_ns) * 100.0 / NULLIF(MAX(t_ns) - MIN(t_ns) + 10e9, 0) AS cpu_pct,
    MAX(due) AS due, MAX(taken) AS taken, MAX(torn) AS torn, MAX(stacks_lost) AS stacks_lost
FROM python.sampling GROUP BY host, pid"""
# Rows of idle threads come once a second.
_LAST_STACKS = """\
WITH newest AS (
    SELECT thread, MAX(t_ns) AS t_ns, arg_max(stack, t_ns) AS stack, arg_max(gil, t_ns) AS gil,
        arg_max(idle, t_ns) AS idle
    FROM python.stack_sample
    WHERE ts >= (SELECT MAX(ts) FROM python.stack_sample) - INTERVAL 1500 MILLISECOND
    GROUP BY thread),
named AS (SELECT thread, arg_max(name, t_ns) AS name FROM python.thread
          WHERE name IS NOT NULL GROUP BY thread)
SELECT newest.*, name FROM newest LEFT JOIN named USING (thread) ORDER BY thread"""
_FRAMES = """\
SELECT stack, COALESCE(func, '?') AS func, COALESCE(file, '?') AS file,
    COALESCE(lineno, 0) AS lineno
FROM python.frame WHERE stack IN ({stacks}) ORDER BY stack, depth"""
_SOURCES = """\
SELECT source, state, any_value(detail) AS detail, COUNT(*) AS processes FROM sonde.source
WHERE state NOT IN ('on', 'off') GROUP BY source, state ORDER BY source"""


def describe_sessions(sessions: Sequence[Session], base_ns: int) -> list[dict[str, Any]]:
    """Return the recorded processes, in the order in which stacks number them."""
    found, calm = [], find_ended_by_parents(sessions)
    for part, one in enumerate(sessions):
        ending = find_ending(one)
        found.append({
            "part": part, "session": one.id, "host": one.host, "pid": one.pid, "rank": one.rank,
            "command": name_program(one.meta.argv), "argv": " ".join(map(str, one.meta.argv)),
            "state": "ended" if one.id in calm else one.find_state(),
            "from": one.start_wall_ns - base_ns,
            "job": one.meta.job, "python": one.meta.python, "monitor": one.is_monitor,
            "ending": None if ending is None else ending.sentence,
        })  # fmt: skip
    return found


def describe_choice(sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """Return recordings to choose from, the newest first."""
    ordered = sorted(sessions, key=lambda session: -session.start_wall_ns)
    return [
        {"session": one.id, "pid": one.pid, "rank": one.rank, "state": one.find_state(),
         "command": name_program(one.meta.argv), "start": one.start_wall_ns // 10**6,
         "job": one.meta.job}
        for one in ordered[:200]
    ]  # fmt: skip


def describe_server() -> dict[str, Any]:
    """Return what the page should know of whoever serves it."""
    return {"version": __version__, "host": os.uname().nodename}


# ---- stacks now ----------------------------------------------------------------------------------


def read_now(sessions: Sequence[Session]) -> PageAnswer:
    """Return the newest stack of every thread, as the files have it: nothing is asked of the job.
    Threads of all processes with equal stacks are one entry."""
    asked = [session for session in sessions if not session.is_monitor]
    alive = [session for session in asked if session.is_alive()] or asked
    groups: dict[tuple[object, bool, str], list[tuple[Session, ThreadStack]]] = {}
    notes = []
    for session in alive[:_MOST_PROCESSES]:
        threads = _read_threads(session)
        add_locks(threads, read_lock_waits(session))
        names = {one.thread: one.name for one in threads}
        for one in threads:
            frames = tuple((frame.func, frame.file, frame.line) for frame in one.frames)
            if all(find_owner(file) == SONDE for _, file, _ in frames):
                continue  # it ended the recording, and nothing else
            key = frames, bool(one.idle), _tell_wait(session, one, names)
            groups.setdefault(key, []).append((session, one))
    if len(alive) > _MOST_PROCESSES:
        notes.append(f"{_MOST_PROCESSES} of {len(alive)} processes are shown")
    ordered = sorted(groups.items(), key=lambda item: item[0][1])
    described = [_describe_group(group, wait) for (_, _, wait), group in ordered]
    return PageAnswer(
        {"groups": described, "notes": notes},
        ["SELECT * FROM python.backtrace ORDER BY pid, thread, depth"],
    )


def _tell_wait(session: Session, one: ThreadStack, names: Mapping[int, str | None]) -> str:
    """Return what a thread waits for, and who holds the lock if that is known."""
    if not one.idle:
        return ""
    wait = describe_wait([(frame.func, frame.file) for frame in one.frames], one.wait)
    if one.lock is None:
        return wait
    taken = one.lock.taken
    place = f"{shorten_file(taken[1], session.meta.cwd)}:{taken[2]}" if taken else ""
    return describe_lock(wait, one.lock, names, place)


def _describe_group(group: Sequence[tuple[Session, ThreadStack]], wait: str) -> dict[str, Any]:
    session, one = group[0]
    lasted = [each.t_ns - each.since_ns for _, each in group if each.since_ns is not None]
    here = session.host == os.uname().nodename
    return {
        "threads": [
            {"pid": owner.pid, "rank": owner.rank, "thread": each.thread, "name": each.name or ""}
            for owner, each in group
        ],
        "idle": bool(one.idle), "gil": any(each.gil for _, each in group), "wait": wait,
        "lasted": min(lasted, default=0), "has_run": any(each.has_run for _, each in group),
        "frames": [
            {"func": frame.func, "file": shorten_file(frame.file, session.meta.cwd),
             "line": frame.line, "owner": find_owner(frame.file),
             "source": read_source(frame.file, frame.line, session.start_wall_ns) if here else ""}
            for frame in skip_start(one.frames[::-1])[::-1]
            if find_owner(frame.file) != SONDE
        ],
    }  # fmt: skip


def _read_threads(session: Session) -> list[ThreadStack]:
    try:
        found = stack_table.read_newest(session)
        return found if session.is_alive() else add_native_frames(found, session)
    except FileNotFoundError:
        last = read_last_stacks(session)
    return _read_archived(session) if last is None else last[0]


def _read_archived(session: Session) -> list[ThreadStack]:
    """Return the last stacks of a process whose rings are gone: of its last second."""
    recording = Recording([session])
    rows = recording.query(_LAST_STACKS).to_pylist()
    stacks = ", ".join(str(row["stack"]) for row in rows)
    if not stacks:
        return []
    frames: dict[int, list[stack_table.StackFrame]] = {}
    for row in recording.query(_FRAMES.format(stacks=stacks)).to_pylist():
        frame = stack_table.StackFrame(row["func"], row["file"], row["lineno"], 0)
        frames.setdefault(row["stack"], []).append(frame)
    found = []
    for row in rows:
        one = ThreadStack(row["thread"], row["name"], row["t_ns"])
        one.gil, one.idle = row["gil"], row["idle"]
        one.frames = frames.get(row["stack"], [])
        found.append(one)
    return found


# ---- modules, cost, SQL --------------------------------------------------------------------------


def read_modules(recording: Recording, window: Window) -> PageAnswer:
    """Return where the time of a mean step goes, by module; why not, if that is not known. Of a
    long time its last minutes are read: a day has millions of calls, and its steps are alike."""
    is_long = window.until_ns - window.since_ns > LONG_MODULES_NS
    if is_long:
        window = Window(window.until_ns - LATE_MODULES_NS, window.until_ns)
    try:
        report = read_report(recording, StepSelection(window))
    except Error as error:
        return PageAnswer({"modules": [], "why": str(error)}, ["-- `sonde modules` says the same"])
    nodes = arrange(report, folds=True)
    rows = make_table(nodes, report, flat=False).to_pylist()
    for row, node in zip(rows, nodes, strict=True):
        row["label"] = node.label
    steps = [asdict(one) for one in report.steps]
    return PageAnswer({"modules": make_exact(rows), "steps": make_exact(steps),
                   "step_ns": round(report.step_s * 1e9),
                   "of": "the last ten minutes of it" if is_long else ""}, report.sql)  # fmt: skip


def read_cost(recording: Recording) -> PageAnswer:
    """Return what recording costs, and what was lost."""
    overhead = read_overhead(recording)
    data = {
        "loss": make_exact(recording.query(_LOSS).to_pylist()),
        "sampling": make_exact(recording.query(_SAMPLING).to_pylist()),
        "sources": recording.query(_SOURCES).to_pylist(),
        "torch_pct": None if overhead is None else list(overhead),
    }
    return PageAnswer(data, [_LOSS, _SAMPLING, _SOURCES])


def read_tables(recording: Recording) -> PageAnswer:
    """Return every table with its columns, for completion."""
    found = [
        {"table": one.table, "doc": one.doc,
         "columns": [[field.name, field.kind, field.doc] for field in one.fields]}
        for one in recording.tables()
    ]  # fmt: skip
    return PageAnswer({"tables": found}, ["-- `sonde tables` lists them"])


def run_query(recording: Recording, sql: str) -> PageAnswer:
    """Return the rows of a user's query; at most so many as a page can show."""
    rows = recording.query(sql, timeout_s=QUERY_S, memory=QUERY_MEMORY)
    shown = rows.slice(0, MOST_ROWS)
    data = {
        "names": rows.column_names,
        "kinds": [str(field.type) for field in rows.schema],
        "columns": [make_exact(column.to_pylist()) for column in shown.columns],
        "rows": rows.num_rows, "shown": shown.num_rows,
    }  # fmt: skip
    return PageAnswer(data, [sql])
