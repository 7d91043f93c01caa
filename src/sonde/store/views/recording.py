"""The views of the recording itself: sonde.session, sonde.source, sonde.run and others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from sonde.errors import Damaged
from sonde.session import Session, source_states
from sonde.session.ending import find_ending
from sonde.session.run import Run
from sonde.session.runs import list_runs
from sonde.session.snapshots import list_snapshots
from sonde.store.archive import read_segment
from sonde.store.rows import count_losses, open_tables
from sonde.store.view import View, encode, view_of_rows

Row = dict[str, object]


def _view(
    table: str, doc: str, read_rows: Callable[[Session], list[Row]], *columns: tuple[str, str, str]
) -> View:
    def read_encoded(session: Session) -> list[Row]:
        return [{key: encode(value) for key, value in row.items()} for row in read_rows(session)]

    return view_of_rows(
        table, doc, read_encoded, *((name, kind, "", text) for name, kind, text in columns)
    )


def _read_session(session: Session) -> list[Row]:
    meta = session.meta
    sealed = session.read_sealed()
    state = session.find_state()
    ending = find_ending(session)
    try:
        control = session.read_control()
    except Damaged:
        control = {}  # a sealed session has none any more
    return [
        {
            "session": session.id,
            "state": state,
            "paused": state == "running" and not control.get("on", 1),
            "start_wall_ns": session.start_wall_ns,
            "end_wall_ns": None if sealed is None else sealed.end_wall_ns,
            "command": " ".join(meta.argv),
            "python": meta.python,
            "parent": meta.parent,
            "world_size": meta.world_size,
            "local_rank": meta.local_rank,
            "folder": session.folder,
            "pages_lost": control.get("pages_lost"),
            "meta": json.dumps(meta.dump()),
            "job": meta.job,
            "launcher": meta.launcher,
            "exit_code": None if ending is None else ending.code,
            "exit_signal": None if ending is None else ending.signal,
            "exit_reason": None if ending is None else ending.sentence,
        }
    ]


def _read_environment(session: Session) -> list[Row]:
    known = session.meta.environment or {}
    return [{"name": name, "value": value} for name, value in known.items()]


def read_sources(session: Session) -> list[Row]:
    """Return the newest state of each source and sensor, of a live session or of a sealed one."""
    table = open_tables(session).get(source_states.TABLE)
    rows: list[Row] = []
    if table is not None:
        rows += [row for part in table.list_sound() for row in read_segment(part).to_pylist()]
        rows += table.read_live().to_pylist()
    return source_states.choose_newest(session, rows)


def _read_losses(session: Session) -> list[Row]:
    return [
        {"table_name": name, **count_losses(table)} for name, table in open_tables(session).items()
    ]


def _read_runs(session: Session) -> list[Row]:
    return [_describe_run(run) for run in list_runs(session)]


def _describe_run(run: Run) -> Row:
    state, reason = run.find_state()
    begin_ns, end_ns = run.read_times()
    return {
        "run": run.id,
        "state": state,
        "reason": reason,
        "name": run.about.name,
        "tags": ",".join(run.tags),
        "started_by": run.about.by,
        "t_ns": begin_ns or None,
        "end_t_ns": end_ns or None,
        "skipped": run.about.skipped,
        "session": run.session.id,
        "folder": run.path(""),
        "user_name": run.about.user,
        "environment": None if not run.about.environment else json.dumps(run.about.environment),
    }


def _read_snapshots(session: Session) -> list[Row]:
    return [
        {
            "number": about.number,
            "kind": "calls" if about.of == "calls" else about.kind,
            "weight": about.weight,
            "t_ns": about.start_ns,
            "end_t_ns": about.end_ns,
            "size_bytes": os.path.getsize(path),
            "path": path,
            "session": session.id,
        }
        for path, about in list_snapshots(session)
    ]


VIEWS = (
    _view(
        "sonde.session",
        "One row per recorded process.",
        _read_session,
        ("session", "text", "its id: the name of its folder"),
        ("state", "text", "running, ended, killed (by a signal, or it crashed) or unknown"),
        ("paused", "bool", "the process runs, but recording is paused"),
        ("start_wall_ns", "i64", "start, nanoseconds since 1970"),
        ("end_wall_ns", "i64", "end, nanoseconds since 1970; NULL while it runs"),
        ("command", "text", "command line"),
        ("python", "text", "version of Python"),
        ("job", "text", "job id from the launcher or scheduler"),
        ("launcher", "text", "torchrun, openmpi, mpich, slurm or kubernetes"),
        ("world_size", "i64", "number of ranks"),
        ("local_rank", "i64", "rank on its host"),
        ("parent", "text", "session it was forked from"),
        ("folder", "text", "path of the session folder"),
        (
            "pages_lost",
            "i64",
            "pages of its files that the job could not write: the disk was full or a file was cut",
        ),
        ("meta", "text", "contents of meta.json"),
        (
            "exit_code",
            "i64",
            "exit code of the process; NULL if a signal ended it or nobody saw it",
        ),
        ("exit_signal", "text", "name of the signal that ended the process"),
        (
            "exit_reason",
            "text",
            "why the process ended: uncaught exception, signal, lack of memory",
        ),
    ),
    _view(
        "sonde.source",
        "What is being recorded: the newest state of each source and sensor.",
        read_sources,
        ("source", "text", "name of the source or sensor"),
        (
            "state",
            "text",
            "on, off, failed or unavailable; full if it is a table without room for names",
        ),
        ("detail", "text", "why it is in this state"),
        ("t_ns", "i64", "since when it is in this state; NULL if that is not known"),
    ),
    _view(
        "python.environment",
        "The environment of the process when its recording began: names, and values that are known "
        "to be harmless.",
        _read_environment,
        ("name", "text", "name of the variable"),
        (
            "value",
            "text",
            "its value, if it is one that is shown: see environment.values",
        ),
    ),
    _view(
        "sonde.run",
        "Profiling runs: `sonde.profile` and `sonde profile`.",
        _read_runs,
        ("run", "text", "id of the run"),
        (
            "state",
            "text",
            "PREPARING, RUNNING, STOPPING, PROCESSING, SUCCEEDED, FAILED or CANCELLED",
        ),
        ("reason", "text", "why it ended as it did"),
        ("name", "text", "what was profiled, if it was given a name"),
        ("tags", "text", "its tags, separated by commas"),
        ("started_by", "text", "code or tool"),
        ("t_ns", "i64", "when it began; NULL if it has not"),
        ("end_t_ns", "i64", "when it ended; NULL if it has not"),
        (
            "skipped",
            "i64",
            "calls that were not profiled because this run was active",
        ),
        ("session", "text", "id of the session it belongs to"),
        ("folder", "text", "folder with its files"),
        ("user_name", "text", "who started it"),
        ("environment", "text", "variables that were recorded with it, as JSON"),
    ),
    _view(
        "sonde.snapshot",
        "Snapshots: profiles of a program that does not end, as files for pstats.",
        _read_snapshots,
        ("number", "i64", "number of the snapshot"),
        (
            "kind",
            "text",
            "delta: since the snapshot before it; total: since the start; calls: exact calls",
        ),
        ("weight", "text", "which time it counts: wall, cpu or gil"),
        ("t_ns", "i64", "where its time begins"),
        ("end_t_ns", "i64", "when it was taken"),
        ("size_bytes", "i64", "size of the file"),
        ("path", "text", "the file"),
        ("session", "text", "id of the session it belongs to"),
    ),
    _view(
        "sonde.loss",
        "What was not kept, by table: kept + dropped + unfinished + overwritten + corrupt + expired"
        " = written.",
        _read_losses,
        ("table_name", "text", "name of the table"),
        ("written", "i64", "rows the program asked to write"),
        ("kept", "i64", "rows that can be queried"),
        ("dropped", "i64", "not written because another thread was still writing to the slot"),
        ("unfinished", "i64", "being written now, or when the process was killed"),
        ("overwritten", "i64", "overwritten in the ring before they were archived"),
        ("corrupt", "i64", "damaged on disk and left out"),
        ("expired", "i64", "removed by retention"),
        ("misfit", "i64", "rejected because a value did not fit its column (not part of written)"),
        ("text_lost", "i64", "texts stored as NULL because the text table was full"),
        (
            "unshipped",
            "i64",
            "removed here before they could be sent to archive.to (also part of "
            "expired or corrupt)",
        ),
    ),
)
