"""A look at the heap that nobody asked for: the collector wishes it while the memory grows, and the
job obeys as long as its user has not switched the source himself."""

from __future__ import annotations

import os

from sonde.errors import Damaged
from sonde.session.files import HEAP_LOOK
from sonde.session.records import Record

SOURCE, SETTING = "heap", "source.heap"
GRACE_NS = 10 * 10**9  # after its end, until a look counts as over though nobody has ended it


class HeapLook(Record):
    """heap_look.json: whether the heap is looked at because the memory grows."""

    is_on: bool
    is_declined: bool = False  # the user has switched the source himself: his word counts
    count: int = 0  # looks so far
    begin_ns: int = 0  # of the last one, as rows count time
    until_ns: int = 0  # when it is to end, or when it ended
    why: str = ""


def read_look(folder: str) -> HeapLook:
    """Return what is wished of a session; nothing if nobody ever wished anything."""
    try:
        return HeapLook.read(os.path.join(folder, HEAP_LOOK))
    except (FileNotFoundError, Damaged):
        return HeapLook(is_on=False)


def decline_look(folder: str) -> bool:
    """Note that the user has switched the source himself; return whether that is new. The folder's
    lock must be held."""
    look = read_look(folder)
    if look.is_declined:
        return False
    look.replace(is_on=False, is_declined=True).write(os.path.join(folder, HEAP_LOOK))
    return True
