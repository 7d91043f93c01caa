"""Names that found no room: counted and put into words here, for every face."""

from __future__ import annotations

from sonde import _core
from sonde.errors import Damaged, NoSession
from sonde.session.files import NODES
from sonde.session.folder import Session
from sonde.session.ring import map_file
from sonde.session.texts import NAME
from sonde.words import show_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_WORDS = {
    "texts_lost": ("names found no room", "text"),
    "stacks_lost": ("samples found no room for their stack", "stack"),
}


def describe_missing_names(sessions: Iterable[Session]) -> dict[str, str]:
    """Return a line for each table that had no room for all names: by the name of the table."""
    lost = dict.fromkeys(_WORDS, 0)
    sizes: dict[str, int] = {}
    for session in sessions:
        for kind, count in count_missing(session).items():
            lost[kind] += count
            if count:
                sizes[kind] = min(sizes.get(kind, 2**63), _read_size(session, _WORDS[kind][1]))
    return {
        f"{_WORDS[kind][1]} table": _describe(kind, count, sizes[kind])
        for kind, count in lost.items()
        if count
    }


def count_missing(session: Session) -> dict[str, int]:
    """Return how many texts, and how many stacks of samples, found no room so far."""
    try:
        sealed = session.read_sealed()
    except Damaged:
        sealed = None
    if sealed is not None:
        # Sessions that an earlier sonde sealed have counters of their tables only.
        known = sum(table.text_lost for table in sealed.tables.values())
        return {"texts_lost": sealed.texts_lost or known, "stacks_lost": sealed.stacks_lost}
    return {
        "texts_lost": _read_count(session.path(NAME), _core.intern_lost),
        "stacks_lost": _read_count(session.path(NODES), _core.nodes_lost),
    }


def _describe(kind: str, count: int, size: int) -> str:
    what, table = _WORDS[kind]
    of = f" of {show_bytes(size)}" if size else ""
    return f"{count:,} {what}: the {table} table{of} is full; raise {table}.bytes"


def _read_size(session: Session, table: str) -> int:
    """Return how large a table may become; 0 if that is not known."""
    try:
        return int(session.read_config()[f"{table}.bytes"])
    except (Damaged, NoSession):
        return 0


def _read_count(path: str, read: Callable[[_core.Map], int]) -> int:
    """Return a counter of a mapped file; 0 if there is none: whoever needs it says why."""
    try:
        return read(map_file(path))
    except (OSError, _core.Damaged, _core.Newer, Damaged):
        return 0
