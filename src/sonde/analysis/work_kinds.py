"""What kind of work a library call is, in words: told by its package, never by source text."""

from __future__ import annotations

from sonde.analysis.known_work import PLAIN, WAITS, WORK, WorkKind

_WORK_OF = {name: work for work in WORK for name in work.calls}
_WAIT_OF = {kind: work for work in WAITS for kind in work.calls}


def find_work(call: str) -> WorkKind | None:
    """Return the kind of work of a call like `json.loads` or `import numpy`; None if unknown."""
    if call.startswith("import "):
        return _WORK_OF["import"]
    parts = call.split(".")
    for end in range(len(parts), 0, -1):
        work = _WORK_OF.get(".".join(parts[:end]))
        if work is not None:
            return work
    return None


def find_kind(call: str) -> str:
    """Return what kind of work a call is, in words; empty if unknown."""
    work = find_work(call)
    return "" if work is None else work.kind


def find_instead(call: str, wait: str | None, *, is_waiting: bool, is_own: bool = True) -> str:
    """Return what people do about time in such a call; empty if nothing is known. `wait` is what
    the kernel says that it waits for. Without a call, the time is in a line of the user's own, if
    that is known."""
    work = find_work(call)
    if is_waiting:
        if work is not None and work.waiting:
            return work.waiting
        about = _WAIT_OF.get(wait or "")
        return "" if about is None else about.waiting
    if work is not None:
        return work.instead
    return PLAIN.instead if is_own and not call else ""
