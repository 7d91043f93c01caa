"""The view of the heap: python.heap."""

from __future__ import annotations

from sonde.session import Session
from sonde.session.files import HEAP_NODES
from sonde.session.heap_table import read_heap
from sonde.session.stack_table import Nodes, is_native_place
from sonde.store.view import Columns, View, make_view_schema

_HEAP = make_view_schema(
    "python.heap",
    "What each stack has allocated, up to now or to the end, however the process ended.",
    (
        ("stack", "i64", "", "the stack that allocated, see python.frame"),
        ("type", "text", "", "type of the objects; NULL if it is not known, as for buffers"),
        ("alive_bytes", "i64", "bytes", "allocated and not freed yet, as an estimate from samples"),
        ("alive_blocks", "i64", "", "number of such blocks"),
        ("allocated_bytes", "i64", "bytes", "allocated since the source was first switched on"),
        ("allocated_blocks", "i64", "", "number of such blocks"),
        ("func", "text", "", "function that allocated"),
        ("file", "text", "", "file of the function"),
        ("lineno", "i64", "", "line that allocated"),
        (
            "native", "text", "",
            "innermost function of C, C++ or Fortran that allocated there; NULL if it is not known",
        ),
        ("native_file", "text", "", "library of that function"),
    ),
)  # fmt: skip


def _compute(session: Session) -> Columns:
    heap = read_heap(session)
    nodes = heap.nodes
    found: dict[str, list[object]] = {field.name: [] for field in _HEAP.fields[:11]}
    for place in range(len(nodes)):
        if not heap.allocated_blocks[place]:
            continue
        is_type = heap.is_type(place)
        at = nodes.find_parent(place) if is_type else place
        line = _find_line(nodes, at)
        row = (
            nodes.hashes[at],
            nodes.text(nodes.funcs[place]) if is_type else None,
            heap.allocated_bytes[place] - heap.freed_bytes[place],
            heap.allocated_blocks[place] - heap.freed_blocks[place],
            heap.allocated_bytes[place],
            heap.allocated_blocks[place],
            nodes.text(nodes.funcs[line]),
            nodes.text(nodes.files[line]),
            nodes.lines[line],
            nodes.text(nodes.funcs[at]) if line != at else None,
            nodes.text(nodes.files[at]) if line != at else None,
        )
        for values, value in zip(found.values(), row, strict=True):
            values.append(value)
    return found


def _find_line(nodes: Nodes, place: int) -> int:
    """Return the place of the innermost frame of Python in a stack: below it are functions of C."""
    for at in nodes.walk(place):
        if not is_native_place(nodes.text(nodes.files[at]), nodes.lines[at]):
            return at
    return place


HEAP = View(_HEAP, _compute, is_archived=True, files=(HEAP_NODES,))
VIEWS = (HEAP,)
