"""The stack table of a session that is sealed, put together again from its archive."""

from __future__ import annotations

from sonde.errors import Error
from sonde.session import Session
from sonde.session.stack_table import Nodes
from sonde.store.views.stacks import STACK


def read_archived_nodes(session: Session) -> Nodes:
    """Return every sampled stack of a sealed session, with its sums."""
    rows = STACK.read_session(session).to_pydict()
    count = len(rows["stack"])
    if not count:
        raise Error(f"no stack of process {session.pid} is in its archive")
    places = {stack: at for at, stack in enumerate(rows["stack"], 1)}
    texts: dict[str, int] = {}
    funcs, files = (
        [texts.setdefault(text or "?", len(texts) + 1) for text in rows[name]]
        for name in ("func", "file")
    )
    parents = [places.get(parent, 0) for parent in rows["parent"]]
    sums = (rows[name] for name in ("samples", "wall_ns", "cpu_ns", "gil_ns"))
    columns = [
        list(range(1, count + 1)), parents, funcs, files, rows["lineno"], rows["first_line"],
        rows["stack"], *sums,
    ]  # fmt: skip
    return Nodes(columns, list(texts), 0)
