"""Whose traffic the network's numbers are: the kernel counts by interface, not by process."""

from __future__ import annotations

import os


def has_own_network(pid: int, proc: str = "/proc") -> bool:
    """Tell whether a process and those below it are alone in their network namespace, as in a
    container: then what its interfaces count is theirs. False if that cannot be known."""
    try:
        namespace = os.stat(f"{proc}/{pid}/ns/net").st_ino
        pids = [int(name) for name in os.listdir(proc) if name.isdecimal()]
        parents = {one: _read_parent(one, proc) for one in pids}
        return all(
            _is_below(one, pid, parents)
            for one in parents
            if _find_namespace(one, proc) in (namespace, None)
        )
    except (OSError, ValueError, IndexError):
        return False


def _read_parent(pid: int, proc: str) -> int:
    """Return the parent of a process; -1 if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _find_namespace(pid: int, proc: str) -> int | None:
    """Return the network namespace of a process; None if it is not told, -1 if there is none."""
    try:
        return os.stat(f"{proc}/{pid}/ns/net").st_ino
    except PermissionError:
        return None
    except OSError:  # it has ended
        return -1


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid > 0 and pid != top:
        pid = parents.get(pid, 0)
    return pid == top
