"""Files of stack nodes, as two sources write them."""

from __future__ import annotations

import os

from sonde import _core
from sonde.session import ring
from sonde.session.files import Replacement

_NODE_BYTES = 64


def open_nodes(path: str, size: int) -> _core.Map:
    """Map a file with room for so many bytes of nodes; make it if it is not there."""
    if os.path.exists(path):  # the source was switched off and on again
        return ring.map_file(path, writable=True)
    entries = size // _NODE_BYTES
    with Replacement(path) as hidden:
        fd = ring.create_file(hidden, _core.nodes_bytes(entries))
        try:
            nodes = _core.Map(fd, True)
        finally:
            os.close(fd)
        _core.nodes_init(nodes, entries)
    return nodes
