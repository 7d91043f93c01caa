"""What tells a process from others with the same command: its title, or who forked it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sonde.cli._command_text import FORKED
from sonde.session import Session
from sonde.words import WORKER


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
    has the same command, who did; so of a worker of multiprocessing; of one that has a title,
    that."""
    known = {row["session"]: (row["pid"], command)
             for row, command in zip(rows, commands, strict=True)}  # fmt: skip
    parents, found = find_parents(rows), []
    for row, command in zip(rows, commands, strict=True):
        pid, of_parent = known.get(parents.get(row["session"], ""), (None, None))
        how = "forked" if of_parent == command else "started"
        is_told = pid is not None and (how == "forked" or command == WORKER)
        found.append(row["title"] or (f"{FORKED} {how} by {pid}" if is_told else command))
    return found


def find_parents(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return who started each session, by their ids, where that is one of these rows."""
    sessions = {row["session"] for row in rows}
    in_jobs = {
        (row["host"], row["job"], row["pid"]): row["session"] for row in rows if row["job"]
    }  # a pid may come again, but hardly within a job
    parents = {
        row["session"]: row["parent"] or in_jobs.get((row["host"], row["job"], row["ppid"]))
        for row in rows
    }
    return {one: parent for one, parent in parents.items() if parent and parent in sessions}
