"""Read the heap table: what each stack has allocated, as its process left it."""

from __future__ import annotations

from sonde.session.files import HEAP_NODES
from sonde.session.folder import Session
from sonde.session.stack_table import Nodes, read_sums

TYPE = "<type>"  # the file of a node that is no frame, but the type of what the one above allocated


class HeapTable:
    """Every stack that allocated, as a tree, with sums of bytes and blocks."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        # The same words as in the stack table; _core/heap/samples.h says what is in them.
        self.allocated_blocks, self.allocated_bytes = nodes.samples, nodes.wall_ns
        self.freed_bytes, self.freed_blocks = nodes.cpu_ns, nodes.gil_ns

    def is_type(self, place: int) -> bool:
        """Return whether a node is a type, not a frame."""
        return (
            self.nodes.text(self.nodes.files[place]) == TYPE and self.nodes.find_parent(place) >= 0
        )


def read_heap(session: Session) -> HeapTable:
    """Return the heap table; it is empty if there is none, or if it is archived."""
    try:
        return HeapTable(read_sums(session, session.path(HEAP_NODES)))
    except FileNotFoundError:
        return HeapTable(Nodes.make_empty())
