"""What the client of an engine needs: somebody who listens, and pandas."""

from __future__ import annotations

import socket
import sys
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


def let_pandas_in() -> None:
    """Let packages of others import pandas, which our commands leave out (see background.py):
    Spark's client does not work without it."""
    sys.meta_path[:] = [one for one in sys.meta_path if getattr(one, "LEAVES_OUT", "") != "pandas"]
