"""The views of stacks: python.stack, python.frame and python.backtrace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sonde.session import Session, stack_table
from sonde.session.files import HEAP_NODES, NODES
from sonde.session.heap_table import read_heap
from sonde.session.last_stacks import read_last_stacks
from sonde.session.native_stacks import add_native_frames
from sonde.session.stack_table import StackFrame, ThreadStack
from sonde.store import archive
from sonde.store.rows import open_table, read_columns
from sonde.store.view import Columns, ReadFiles, Row, View, make_view_schema, view_of_rows
from sonde.store.views.heap import HEAP
from sonde.tables import name_row
from sonde.tables.stack import TaskWait

_FRAME_COLUMNS = (
    ("func", "text", "", "function"),
    ("file", "text", "", "file of the function"),
    ("lineno", "i64", "", "the line that ran, or called"),
    ("first_line", "i64", "", "first line of the function"),
)
_STACK = make_view_schema(
    "python.stack",
    "Every stack that was sampled or allocated, as a tree, with sums since the start; its rows "
    "never expire.",
    (
        ("stack", "i64", "", "the stack: the path from the root to this frame"),
        ("parent", "i64", "", "stack of the caller; NULL at the root"),
        *_FRAME_COLUMNS,
        ("samples", "i64", "", "samples that found this line running"),
        ("wall_ns", "i64", "ns", "time that those samples stand for"),
        ("cpu_ns", "i64", "ns", "CPU time used in this line"),
        ("gil_ns", "i64", "ns", "part of wall_ns in which the GIL was held"),
    ),
)
_FRAME = make_view_schema(
    "python.frame",
    "The frames of every stack; join it with python.stack_sample or python.heap on stack.",
    (
        ("stack", "i64", "", "the stack"),
        ("depth", "i64", "", "0 is the innermost frame: the line that ran"),
        *_FRAME_COLUMNS,
    ),
    added=(),
)


# ---- stack --------------------------------------------------------------------------------------


def _compute_stacks(session: Session) -> Columns:
    nodes = (
        stack_table.read_nodes(session)
        if stack_table.has_nodes(session)
        else stack_table.Nodes.make_empty()
    )
    sums = {
        "samples": nodes.samples,
        "wall_ns": nodes.wall_ns,
        "cpu_ns": nodes.cpu_ns,
        "gil_ns": nodes.gil_ns,
    }
    sampled = {**_describe_nodes(nodes, list(range(len(nodes)))), **sums}
    heap, known = read_heap(session), set(nodes.hashes)
    only = [
        place
        for place, stack in enumerate(heap.nodes.hashes)
        if stack not in known and not heap.is_type(place)
    ]
    allocated = {**_describe_nodes(heap.nodes, only), **{name: [0] * len(only) for name in sums}}
    return {name: [*sampled[name], *allocated[name]] for name in sampled}


def _describe_nodes(nodes: stack_table.Nodes, places: Sequence[int]) -> dict[str, list[Any]]:
    parents = [nodes.find_parent(place) for place in places]
    return {
        "stack": [nodes.hashes[at] for at in places],
        "parent": [None if at < 0 else nodes.hashes[at] for at in parents],
        "func": [nodes.text(nodes.funcs[at]) for at in places],
        "file": [nodes.text(nodes.files[at]) for at in places],
        "lineno": [nodes.lines[at] for at in places],
        "first_line": [nodes.first_lines[at] for at in places],
    }


STACK = View(_STACK, _compute_stacks, is_archived=True, files=(NODES, HEAP_NODES))


# ---- frame --------------------------------------------------------------------------------------


# The same as FRAME.read, for an engine that has these tables: it takes a third of the time, most of
# which is to import what Arrow computes with.
FRAME_TABLES = ("python.stack", "python.heap", name_row(TaskWait))
FRAME_SQL = f"""
WITH RECURSIVE node AS MATERIALIZED (
  SELECT DISTINCT ON (stack) stack, parent, func, file, lineno, first_line FROM python.stack),
sampled AS (
  SELECT stack FROM python.stack WHERE samples > 0
  UNION SELECT stack FROM python.heap UNION SELECT stack FROM {FRAME_TABLES[2]}),
walk(stack, depth, place, up) AS (
  SELECT sampled.stack, 0::BIGINT, node.stack, node.parent FROM sampled LEFT JOIN node USING (stack)
  UNION ALL
  SELECT walk.stack, depth + 1, node.stack, node.parent FROM walk JOIN node ON node.stack = walk.up)
SELECT walk.stack, depth, func, file, lineno, first_line
FROM walk LEFT JOIN node ON node.stack = place
WHERE EXISTS (FROM python.stack) ORDER BY walk.stack, depth
"""


class _FrameView(View):
    """The frames of every stack. Each stack counts once, however many processes have it."""

    def __init__(self) -> None:
        super().__init__(_FRAME, lambda _session: {}, from_tables=True)

    def read(
        self, sessions: Sequence[Session], read_files: ReadFiles = archive.read_segments
    ) -> pa.Table:
        import pyarrow.compute as pc  # only here: most commands have FRAME_SQL do this

        whole = STACK.read(sessions, read_files)
        if not whole.num_rows:
            return self.columns.empty_table()
        seen = whole.filter(pc.greater(whole["samples"], 0))["stack"]
        held = HEAP.read(sessions, read_files)["stack"]
        awaited = _list_awaited(whole, sessions)
        sampled = pc.unique(
            pa.chunked_array([*seen.chunks, *held.chunks, *awaited.chunks], pa.int64())
        )
        nodes = whole.take(_find_first(whole["stack"]))
        stacks, parents = (nodes[name].combine_chunks() for name in ("stack", "parent"))
        up = pc.index_in(parents, stacks)
        up = pc.if_else(pc.is_null(parents), pa.scalar(None, up.type), up)
        place = pc.index_in(sampled, stacks)
        # Numbers first, and texts once for all: a piece for each depth takes three times as long.
        leaves, found = sampled, list[tuple[pa.Array, ...]]()
        while len(place):
            found.append((leaves, pa.repeat(pa.scalar(len(found), pa.int64()), len(place)), place))
            place = up.take(place)
            left = pc.is_valid(place)
            leaves, place = leaves.filter(left), place.filter(left)
        if not found:  # there are functions, and no sample of them yet
            return self.columns.empty_table()
        stack, depth, place = (pa.concat_arrays(parts) for parts in zip(*found, strict=True))
        frames = nodes.select(["func", "file", "lineno", "first_line"]).take(place)
        return pa.table([stack, depth, *frames.columns], schema=self.columns)


def _list_awaited(whole: pa.Table, sessions: Sequence[Session]) -> pa.ChunkedArray:
    """Return the stacks of tasks that waited. No sample is theirs: without a stack that has neither
    a sample nor a stack inside of it, there are none, and their tables need not be read."""
    import pyarrow.compute as pc

    bare = whole.filter(pc.equal(whole["samples"], 0))["stack"]
    wanted = pa.schema([pa.field("stack", pa.int64())])
    if pc.all(pc.is_in(bare, pc.unique(whole["parent"]))).as_py() is not False:
        return wanted.empty_table()["stack"]
    parts = [read_columns(one, name_row(TaskWait), wanted) for one in sessions]
    return pa.concat_tables([wanted.empty_table(), *parts])["stack"]


def _find_first(column: pa.ChunkedArray) -> pa.Array:
    """Return the place of the first occurrence of each value."""
    import pyarrow.compute as pc

    return pc.index_in(pc.unique(column), value_set=column.combine_chunks())


# ---- backtrace ----------------------------------------------------------------------------------


def _list_backtrace(session: Session) -> list[Row]:
    seen = stack_table.read_locals(session)
    found: list[Row] = []
    for one in _list_newest(session):
        for depth, frame in enumerate(one.frames):
            known = seen.get((one.thread, len(one.frames) - depth, frame.func, frame.line))
            found.append({
                "t_ns": one.t_ns, "thread": one.thread, "name": one.name, "depth": depth,
                "gil": one.gil, "idle": one.idle, "interpreter": one.interpreter,
                "func": frame.func, "file": frame.file, "lineno": frame.line,
                "frame_type": _name_kind(frame),
                "locals": None if known is None else json.dumps(known),
            })  # fmt: skip
    return found


def _list_newest(session: Session) -> list[ThreadStack]:
    last = None if session.read_sealed() is None else read_last_stacks(session)
    if last is not None:
        return last[0]
    newest, names = _find_newest(session), find_names(session)
    chains = find_chains(session, {row["stack"] for row in newest.values()})
    found = []
    for thread, row in sorted(newest.items()):
        one = ThreadStack(thread, names.get(thread), row["t_ns"])
        one.gil, one.idle, one.interpreter = row["gil"], row["idle"], row.get("interpreter") or 0
        one.frames = [
            StackFrame(frame["func"], frame["file"], frame["lineno"], 0)
            for frame in chains.get(row["stack"], [])
        ]
        found.append(one)
    return found if session.is_alive() else add_native_frames(found, session)


def _name_kind(frame: StackFrame) -> str:
    if frame.func == "<cut>":
        return "cut"
    return "Native" if frame.is_native else "Python"


def _read_newest_rows(session: Session, table: str) -> list[dict[str, Any]]:
    found = open_table(session, table)
    if found is None:
        return []
    rows = [
        row for part in found.list_sound()[-2:] for row in archive.read_segment(part).to_pylist()
    ]
    return sorted(rows + found.read_live().to_pylist(), key=lambda row: int(row["t_ns"]))


def _find_newest(session: Session) -> dict[int, dict[str, Any]]:
    rows = _read_newest_rows(session, stack_table.SAMPLES)
    # Without a sample a row has CPU time that came to light later, and no state.
    newest = {row["thread"]: row for row in rows if row["samples"]}
    for row in _read_newest_rows(session, stack_table.THREADS):
        known = newest.get(row["thread"])
        if row["state"] == "ended" and known and row["t_ns"] >= known["t_ns"]:
            del newest[row["thread"]]
    return newest


def find_names(session: Session) -> dict[int, str]:
    """Return the names of threads, by their ids."""
    rows = _read_newest_rows(session, stack_table.THREADS)
    return {row["thread"]: row["name"] for row in rows if row["name"] is not None}


def find_chains(session: Session, wanted: set[object]) -> dict[object, list[dict[str, Any]]]:
    """Return the frames (func, file, lineno) of these stacks, the innermost first."""
    nodes = {row["stack"]: row for row in STACK.read_session(session).to_pylist()}
    chains: dict[object, list[dict[str, Any]]] = {}
    for stack in wanted:
        chain, at = [], nodes.get(stack)
        while at is not None:
            chain.append({key: at[key] for key in ("func", "file", "lineno")})
            at = nodes.get(at["parent"])
        chains[stack] = chain
    return chains


BACKTRACE = view_of_rows(
    "python.backtrace",
    "The newest stack of every thread that has not ended, one row per frame.",
    _list_backtrace,
    ("t_ns", "i64", "ns", "when the thread was last sampled"),
    ("thread", "i64", "", "kernel thread id"),
    ("name", "text", "", "name of the thread in Python"),
    ("depth", "i64", "", "0 is the innermost frame: the line that runs"),
    ("func", "text", "", "function"),
    ("file", "text", "", "file of the function"),
    ("lineno", "i64", "", "the line that runs, or calls"),
    ("frame_type", "text", "", "Python, Native (see stack.native and stack.fatal), or cut where"
     " outer frames were left out"),
    ("gil", "bool", "", "the thread held the GIL"),
    ("idle", "bool", "", "the thread slept or waited for anything but a CPU"),
    ("locals", "text", "", "local variables as JSON, if the last `sonde stacks --locals` saw this"
     " very line"),
    ("interpreter", "i64", "", "the interpreter that the thread was in; 0 is the main one"),
    from_tables=True,
)  # fmt: skip
FRAME = _FrameView()
VIEWS = (STACK, FRAME, BACKTRACE)
