"""Hosts that are listed on the command line: @hosts:node1,node2:7500."""

from __future__ import annotations


def list_hosts(value: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in value.split(",") if word.strip()]
