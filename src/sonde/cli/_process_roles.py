"""What tells a process from others with the same command: its title, or who forked it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sonde.session import Session


def read_title(session: Session) -> str | None:
    """Return the title that a live process gave itself, as with `setproctitle`: one text where its
    command was; None if it has none."""
    if not session.shares_pids() or not session.is_alive():
        return None
    try:
        with open(f"/proc/{session.pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").decode(errors="replace")
    except OSError:
        return None
    is_title = len(session.meta.argv) > 1 and "\0" not in words
    return words.strip() or None if is_title else None


def list_commands(rows: Sequence[Mapping[str, Any]], commands: Sequence[str]) -> list[str]:
    """Return the commands of these rows: of a process that was forked by another one of them, and
    has the same command, who did; of one that has a title, that."""
    known = {row["session"]: (row["pid"], command)
             for row, command in zip(rows, commands, strict=True)}  # fmt: skip
    found = []
    for row, command in zip(rows, commands, strict=True):
        pid, of_parent = known.get(row["parent"], (None, None))
        is_same = of_parent == command
        found.append(row["title"] or (f"└ forked by {pid}" if is_same else command))
    return found
