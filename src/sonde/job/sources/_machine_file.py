"""The file in which the sampler and the heap ask about machine code: see machine_code.h."""

from __future__ import annotations

import os

from sonde import _core
from sonde.session import ring
from sonde.session.files import MACHINE_CODE, Replacement
from sonde.session.writer import SessionWriter

_PIECES = 65_536


def open_machine_code(session: SessionWriter) -> _core.Map:
    """Map the file of a session, which its sources share: whoever answers knows of one only."""
    if session.machine_code is None:
        session.machine_code = _make(session.folder)
    return session.machine_code


def _make(folder: str) -> _core.Map:
    with Replacement(os.path.join(folder, MACHINE_CODE)) as hidden:
        fd = ring.create_file(hidden, _core.machine_bytes(_PIECES))
        try:
            table = _core.Map(fd, True)
        finally:
            os.close(fd)
        _core.machine_init(table, _PIECES)
    return table
