"""The file in which the sampler asks about machine code: see machine_code.h."""

from __future__ import annotations

import os

from sonde import _core
from sonde.session import ring
from sonde.session.files import MACHINE_CODE, Replacement

_PIECES = 65_536


def open_machine_code(folder: str) -> _core.Map:
    """Map a new file: one of an earlier time may speak of libraries that have been unloaded."""
    with Replacement(os.path.join(folder, MACHINE_CODE)) as hidden:
        fd = ring.create_file(hidden, _core.machine_bytes(_PIECES))
        try:
            table = _core.Map(fd, True)
        finally:
            os.close(fd)
        _core.machine_init(table, _PIECES)
    return table
