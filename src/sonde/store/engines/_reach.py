"""Whether an engine can be reached, asked before its own client, which may try for minutes."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from sonde.errors import QueryError

_CONNECT_S = 10.0


def check_listens(address: str, usual_port: int) -> None:
    """Raise an error if nothing listens at an address."""
    parts = urlsplit(address)
    try:
        host, port = parts.hostname or "", parts.port or usual_port
        socket.create_connection((host, port), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise QueryError(f"{address} cannot be reached: {error}") from None
