"""The tables about stacks that are worked out when asked for: stack, frame and backtrace."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sonde.session import Session, stack_table
from sonde.session.schema import Field, Schema
from sonde.store import archive
from sonde.store.rows import open_tables

STACK = "python.stack"
_TYPES = {"text": pa.string(), "i64": pa.int64(), "bool": pa.bool_()}


class View:
    """A table that is worked out when it is asked for."""

    def __init__(self, schema: Schema, read: Callable[[Sequence[Session]], pa.Table]) -> None:
        self.schema, self.read = schema, read
        self.columns = _columns(schema)


def _columns(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, _TYPES[f.kind]) for f in schema.fields])


def _fields(*columns: tuple[str, str, str, str]) -> list[Field]:
    return [Field(name, kind, True, doc, unit) for name, kind, unit, doc in columns]


_WHOSE = _fields(
    ("host", "text", "", "machine"), ("pid", "i64", "", "process"), ("rank", "i64", "", "rank")
)
_STACK = Schema(
    STACK,
    _fields(
        ("stack", "i64", "", "which stack: the path from the root to this frame"),
        ("parent", "i64", "", "the stack of the caller; NULL at the root"),
        ("func", "text", "", "function"),
        ("file", "text", "", "its file"),
        ("lineno", "i64", "", "the line that ran, or called"),
        ("first_line", "i64", "", "first line of the function"),
        ("samples", "i64", "", "samples that found this very line running"),
        ("wall_ns", "i64", "ns", "time those samples stand for"),
        ("cpu_ns", "i64", "ns", "CPU time used in it"),
        ("gil_ns", "i64", "ns", "part of wall_ns in which the GIL was held"),
    )
    + _WHOSE,
    "Every stack that was sampled, as a tree, with sums since the start; nothing is ever expired.",
)
_FRAME = Schema(
    "python.frame",
    _fields(
        ("stack", "i64", "", "which stack"),
        ("depth", "i64", "", "0 is the innermost frame: the line that ran"),
        ("func", "text", "", "function"),
        ("file", "text", "", "its file"),
        ("lineno", "i64", "", "the line that ran, or called"),
        ("first_line", "i64", "", "first line of the function"),
    ),
    "The frames of every sampled stack; join it with python.stack_sample on stack.",
)
_BACKTRACE = Schema(
    "python.backtrace",
    _fields(
        ("t_ns", "i64", "ns", "when the thread was last sampled"),
        ("thread", "i64", "", "thread id, as the kernel counts"),
        ("name", "text", "", "what Python calls the thread"),
        ("depth", "i64", "", "0 is the innermost frame: the line that runs"),
        ("func", "text", "", "function"),
        ("file", "text", "", "its file"),
        ("lineno", "i64", "", "the line that runs, or calls"),
        ("frame_type", "text", "", "python, or cut where outer frames were left out"),
        ("gil", "bool", "", "the thread held the GIL"),
        ("idle", "bool", "", "the thread slept or waited, for anything but a CPU"),
        ("locals", "text", "", "local variables as JSON, if the last `sonde stacks --locals` saw"
         " this very line"),
    )
    + _WHOSE,
    "The newest stack of every thread that has not ended, one row per frame.",
)  # fmt: skip


# ---- stack --------------------------------------------------------------------------------------


def make_nodes_table(session: Session) -> pa.Table:
    """The nodes of a session that is not sealed."""
    nodes = stack_table.read_nodes(session)
    rows = len(nodes)
    parents = [nodes.find_parent(place) for place in range(rows)]
    columns = [
        pa.array(nodes.hashes, pa.int64()),
        pa.array([None if at < 0 else nodes.hashes[at] for at in parents], pa.int64()),
        pa.array(map(nodes.text, nodes.funcs), pa.string()),
        pa.array(map(nodes.text, nodes.files), pa.string()),
        *(
            pa.array(column, pa.int64())
            for column in (nodes.lines, nodes.first_lines, nodes.samples, nodes.wall_ns,
                           nodes.cpu_ns, nodes.gil_ns)
        ),
        *(pa.array([value] * rows, kind) for value, kind in _whose(session)),
    ]  # fmt: skip
    return pa.table(columns, schema=_columns(_STACK))


def _whose(session: Session) -> list[tuple[object, pa.DataType]]:
    return [(session.host, pa.string()), (session.pid, pa.int64()), (session.rank, pa.int64())]


def _read_stack_of(session: Session) -> pa.Table:
    wanted = _columns(_STACK)
    parts = [part for part in archive.list_segments(session, STACK) if part.is_sound()]
    if session.read_sealed() is not None and parts:
        return pa.concat_tables([archive.read_segment(part, wanted) for part in parts])
    if stack_table.has_nodes(session):
        return make_nodes_table(session)
    return wanted.empty_table()


def _read_stack(sessions: Sequence[Session]) -> pa.Table:
    parts = [_read_stack_of(session).cast(_columns(_STACK)) for session in sessions]
    return pa.concat_tables([_columns(_STACK).empty_table(), *parts])


# ---- frame --------------------------------------------------------------------------------------


def _read_frame(sessions: Sequence[Session]) -> pa.Table:
    """Each stack once, however many processes have it."""
    whole = _read_stack(sessions)
    first = _find_first(whole["stack"])
    if not whole.num_rows:
        return _columns(_FRAME).empty_table()
    sampled = pc.unique(whole.filter(pc.greater(whole["samples"], 0))["stack"])
    nodes = whole.take(first)
    up = pc.index_in(nodes["parent"].combine_chunks(), nodes["stack"].combine_chunks())
    orphan = pc.is_null(nodes["parent"].combine_chunks())
    up = pc.if_else(orphan, pa.scalar(None, up.type), up)
    place = pc.index_in(sampled, nodes["stack"].combine_chunks())
    leaves, parts, depth = sampled, [], 0
    while len(place):
        frames = nodes.select(["func", "file", "lineno", "first_line"]).take(place)
        depths = pa.repeat(pa.scalar(depth, pa.int64()), len(place))
        parts.append(pa.table([leaves, depths, *frames.columns], schema=_columns(_FRAME)))
        place = up.take(place)
        left = pc.is_valid(place)
        leaves, place, depth = leaves.filter(left), place.filter(left), depth + 1
    return pa.concat_tables([_columns(_FRAME).empty_table(), *parts])


def _find_first(column: pa.ChunkedArray) -> pa.Array:
    """Where each value stands first."""
    places = pa.table([column, pa.array(range(len(column)))], names=["value", "place"])
    return places.group_by("value").aggregate([("place", "min")])["place_min"].combine_chunks()


# ---- backtrace ----------------------------------------------------------------------------------


def _read_backtrace(sessions: Sequence[Session]) -> pa.Table:
    rows = [row for session in sessions for row in _list_backtrace(session)]
    return pa.Table.from_pylist(rows, schema=_columns(_BACKTRACE))


def _list_backtrace(session: Session) -> list[dict[str, object]]:
    newest, names = _find_newest(session), _find_names(session)
    chains = _find_chains(session, {row["stack"] for row in newest.values()})
    seen = stack_table.read_locals(session)
    found = []
    for thread, row in sorted(newest.items()):
        for depth, frame in enumerate(chains.get(row["stack"], [])):
            said = {
                "t_ns": row["t_ns"], "thread": thread, "name": names.get(thread), "depth": depth,
                "gil": row["gil"], "idle": row["idle"], "host": session.host, "pid": session.pid,
                "rank": session.rank, **frame,
                "frame_type": "cut" if frame["func"] == "<cut>" else "python",
            }  # fmt: skip
            known = seen.get((thread, depth, frame["func"], frame["lineno"]))
            said["locals"] = None if known is None else json.dumps(known)
            found.append(said)
    return found


def _read_newest_rows(session: Session, table: str) -> list[dict[str, object]]:
    found = open_tables(session).get(table)
    if found is None:
        return []
    rows = [
        row for part in found.list_sound()[-2:] for row in archive.read_segment(part).to_pylist()
    ]
    return sorted(rows + found.read_live().to_pylist(), key=lambda row: int(row["t_ns"]))


def _find_newest(session: Session) -> dict[object, dict[str, object]]:
    newest = {row["thread"]: row for row in _read_newest_rows(session, stack_table.SAMPLES)}
    for row in _read_newest_rows(session, stack_table.THREADS):
        known = newest.get(row["thread"])
        if row["state"] == "ended" and known and int(str(row["t_ns"])) >= int(str(known["t_ns"])):
            del newest[row["thread"]]
    return newest


def _find_names(session: Session) -> dict[object, object]:
    rows = _read_newest_rows(session, stack_table.THREADS)
    return {row["thread"]: row["name"] for row in rows if row["name"] is not None}


def _find_chains(session: Session, wanted: set[object]) -> dict[object, list[dict[str, object]]]:
    nodes = {row["stack"]: row for row in _read_stack_of(session).to_pylist()}
    chains: dict[object, list[dict[str, object]]] = {}
    for stack in wanted:
        chain, at = [], nodes.get(stack)
        while at is not None:
            chain.append({key: at[key] for key in ("func", "file", "lineno")})
            at = nodes.get(at["parent"])
        chains[stack] = chain
    return chains


VIEWS = (
    View(_STACK, _read_stack),
    View(_FRAME, _read_frame),
    View(_BACKTRACE, _read_backtrace),
)
