"""Every address of a name, such as a headless service of Kubernetes: @dns:sonde-agent.jobs."""

from __future__ import annotations

import socket

from sonde.errors import Error


def list_hosts(value: str) -> list[str]:
    """Return the addresses behind a name; a port after it goes to each of them."""
    name, colon, port = value.partition(":")
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Error(f"the name {name} has no address: {error}; is the service there?") from None
    hosts = sorted({str(address[0]) for *_kind, address in found})
    return [f"[{one}]{colon}{port}" if ":" in one else f"{one}{colon}{port}" for one in hosts]
