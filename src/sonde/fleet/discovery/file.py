"""Hosts from a file, one a line: @file:hosts.txt."""

from __future__ import annotations

from sonde.errors import Error

_LONGEST = 1 << 22  # bytes of such a file


def list_hosts(value: str) -> list[str]:
    """Return the lines of a file without comments, which begin with #."""
    try:
        with open(value, encoding="utf-8", errors="replace") as file:
            lines = file.read(_LONGEST).splitlines()
    except OSError as error:
        raise Error(f"{value}: {error.strerror}; write @file:PATH, one host a line") from None
    return [word for line in lines if (word := line.partition("#")[0].strip())]
