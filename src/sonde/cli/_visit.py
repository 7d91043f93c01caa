"""Looking at a process that is not recorded: it is recorded for as long as somebody looks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from sonde import environ
from sonde.errors import NoSession
from sonde.session import Session
from sonde.session.target import find_sessions

# Nobody keeps it, so nothing but stacks is needed.
_SETTINGS = {
    "collector": "off",
    "source.gc": "off",
    "source.torch": "off",
    "source.collective": "off",
    "source.spawn": "off",
}


@contextmanager
def open_sessions(target: str) -> Iterator[tuple[list[Session], bool]]:
    """Return the sessions of a target, and whether they last only as long as the block: a process
    that is not recorded is attached to, and left as it was, with nothing on disk."""
    try:
        sessions = find_sessions(target, environ.find_root())
    except NoSession:
        if not (target.isdecimal() and os.path.exists(f"/proc/{target}")):
            raise
        sessions = []
    if sessions:
        yield sessions, False
        return
    from sonde.attach import visit  # only here: most processes are recorded

    session = visit.attach(int(target), _SETTINGS)
    try:
        yield [session], True
    finally:
        if session.is_alive():
            visit.detach(session)
        shutil.rmtree(session.folder, ignore_errors=True)
