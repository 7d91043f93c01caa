"""The text table: it stores each distinct text once, and rows hold its number."""

from __future__ import annotations

import os

from sonde import _core
from sonde.errors import Damaged, Newer
from sonde.session.ring import create_file, map_file

NAME = "text.intern"
_BYTES_PER_TEXT = 48  # a guess at the mean; if entries or bytes run out, lost texts are counted


def create_text(folder: str, data_bytes: int) -> _core.Text:
    """Create a text table with room for `data_bytes` of distinct text."""
    entries = max(64, data_bytes // _BYTES_PER_TEXT)
    fd = create_file(os.path.join(folder, NAME), _core.intern_bytes(entries, data_bytes))
    try:
        table = _core.Map(fd, True)
    finally:
        os.close(fd)
    _core.intern_init(table, entries, data_bytes)
    return _core.Text(table)


def open_text(folder: str) -> _core.Text:
    """Open the text table of a session to write to it from another process."""
    path = os.path.join(folder, NAME)
    try:
        return _core.Text(map_file(path, writable=True))
    except _core.Damaged:
        raise Damaged(f"{path} is truncated or damaged") from None
    except _core.Newer:
        raise Newer(path) from None


def read_texts(folder: str) -> list[str | None]:
    """Return every text, ordered by number from 1; None in place of a damaged one."""
    path = os.path.join(folder, NAME)
    try:
        texts, _lost = _core.intern_read(map_file(path))
    except _core.Damaged:
        raise Damaged(f"{path} is truncated or damaged") from None
    except _core.Newer:
        raise Newer(path) from None
    return [None if text is None else text.decode("utf-8", "backslashreplace") for text in texts]
