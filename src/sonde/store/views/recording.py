"""The tables about the recording itself: sonde.session, sonde.source, sonde.run and sonde.loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pyarrow as pa

from sonde.session import Session
from sonde.session.run import Run
from sonde.session.runs import list_runs
from sonde.session.schema import Field, Schema
from sonde.store.archive import read_segment
from sonde.store.rows import count_losses, open_tables

_TYPES = {"text": pa.string(), "i64": pa.int64(), "bool": pa.bool_()}
Row = dict[str, object]


class View:
    """A table that is worked out when it is asked for."""

    def __init__(self, schema: Schema, rows_of: Callable[[Session], list[Row]]) -> None:
        self.schema, self._rows_of = schema, rows_of
        self.columns = pa.schema([pa.field(f.name, _TYPES[f.kind]) for f in schema.fields])

    def read(self, sessions: Sequence[Session]) -> pa.Table:
        """Its rows for these sessions."""
        rows = [
            {key: _clean(value) for key, value in (*row.items(), *_whose(session).items())}
            for session in sessions
            for row in self._rows_of(session)
        ]
        return pa.Table.from_pylist(rows, schema=self.columns)


def _whose(session: Session) -> Row:
    return {"host": session.host, "pid": session.pid, "rank": session.rank}


def _clean(value: object) -> object:
    """Text as UTF-8 can hold it: a command line may hold any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _view(
    table: str, doc: str, rows_of: Callable[[Session], list[Row]], *columns: tuple[str, str, str]
) -> View:
    added = (
        ("host", "text", "machine"),
        ("pid", "i64", "process"),
        ("rank", "i64", "rank, if any"),
    )
    fields = [Field(name, kind, True, said, "") for name, kind, said in (*columns, *added)]
    return View(Schema(table, fields, doc), rows_of)


def _read_session(session: Session) -> list[Row]:
    meta = session.meta
    sealed = session.read_sealed()
    state = session.find_state()
    argv = meta.get("argv")
    text = {key: None if meta.get(key) is None else str(meta[key]) for key in ("job", "launcher")}
    paused = state == "running" and not session.read_control()["on"]
    return [
        {
            "session": session.id,
            "state": state,
            "paused": paused,
            "start_wall_ns": session.start_wall_ns,
            "end_wall_ns": (sealed or {}).get("end_wall_ns"),
            "command": " ".join(map(str, argv)) if isinstance(argv, list) else None,
            "python": str(meta.get("python")),
            "parent": meta.get("parent"),
            "world_size": meta.get("world_size"),
            "local_rank": meta.get("local_rank"),
            "folder": session.folder,
            "meta": json.dumps(meta),
            **text,
        }
    ]


def read_sources(session: Session) -> list[Row]:
    """The newest word on each source."""
    table = open_tables(session).get("sonde.source_log")
    if table is None:
        return []
    rows = [row for part in table.list_sound() for row in read_segment(part).to_pylist()]
    rows += table.read_live().to_pylist()
    newest = {row["source"]: row for row in sorted(rows, key=lambda row: int(row["t_ns"]))}
    keys = ("source", "state", "detail", "t_ns")
    return [{key: row[key] for key in keys} for _, row in sorted(newest.items(), key=str)]


def _read_losses(session: Session) -> list[Row]:
    return [
        {"table_name": name, **count_losses(table)} for name, table in open_tables(session).items()
    ]


def _read_runs(session: Session) -> list[Row]:
    return [_describe_run(run) for run in list_runs(session)]


def _describe_run(run: Run) -> Row:
    state, reason = run.find_state()
    begin_ns, end_ns = run.read_times()
    name, by = run.about["name"], run.about["by"]
    return {
        "run": run.id,
        "state": state,
        "reason": reason,
        "name": name,
        "tags": ",".join(run.tags),
        "started_by": by,
        "t_ns": begin_ns or None,
        "end_t_ns": end_ns or None,
        "skipped": run.about["skipped"],
        "session": run.session.id,
        "folder": run.path(""),
    }


VIEWS = (
    _view(
        "sonde.session",
        "One row per recorded process.",
        _read_session,
        ("session", "text", "its id: the name of its folder"),
        ("state", "text", "running, ended, killed (no goodbye) or unknown"),
        ("paused", "bool", "alive, but told to record nothing"),
        ("start_wall_ns", "i64", "start, nanoseconds since 1970"),
        ("end_wall_ns", "i64", "end, nanoseconds since 1970; NULL while it runs"),
        ("command", "text", "how it was started"),
        ("python", "text", "version of Python"),
        ("job", "text", "job id from the launcher or scheduler"),
        ("launcher", "text", "torchrun, openmpi, mpich, slurm or kubernetes"),
        ("world_size", "i64", "number of ranks"),
        ("local_rank", "i64", "rank on its host"),
        ("parent", "text", "session it was forked from"),
        ("folder", "text", "where it is"),
        ("meta", "text", "meta.json as it is"),
    ),
    _view(
        "sonde.source",
        "What is being recorded: the newest word on each source and sensor.",
        read_sources,
        ("source", "text", "its name"),
        ("state", "text", "on, off, failed or unavailable"),
        ("detail", "text", "why"),
        ("t_ns", "i64", "since when"),
    ),
    _view(
        "sonde.run",
        "Profiling runs: `sonde.profile` and `sonde profile`.",
        _read_runs,
        ("run", "text", "its id"),
        (
            "state",
            "text",
            "PREPARING, RUNNING, STOPPING, PROCESSING, SUCCEEDED, FAILED or CANCELLED",
        ),
        ("reason", "text", "why it ended as it did"),
        ("name", "text", "what was profiled, if it has a name"),
        ("tags", "text", "its tags, with commas"),
        ("started_by", "text", "code, or the tool"),
        ("t_ns", "i64", "when it began; NULL: it has not"),
        ("end_t_ns", "i64", "when it ended; NULL: it has not"),
        ("skipped", "i64", "calls that ran unprofiled because of it"),
        ("session", "text", "where it is recorded"),
        ("folder", "text", "its files"),
    ),
    _view(
        "sonde.loss",
        "What was not kept, by table: kept + dropped + unfinished + overwritten + corrupt + expired"
        " = written.",
        _read_losses,
        ("table_name", "text", "the table"),
        ("written", "i64", "rows the program asked to write"),
        ("kept", "i64", "rows that can be queried"),
        ("dropped", "i64", "not written: another thread was still busy in the slot"),
        ("unfinished", "i64", "being written right now, or when the process was killed"),
        ("overwritten", "i64", "gone from the ring before they were archived"),
        ("corrupt", "i64", "damaged on disk; left out"),
        ("expired", "i64", "removed by retention"),
        ("misfit", "i64", "never written: a value did not fit its column (not part of written)"),
        ("text_lost", "i64", "texts stored as NULL: the text table was full"),
    ),
)
