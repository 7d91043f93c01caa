"""The lock that makes a collector the only one of its host and root folder."""

from __future__ import annotations

import os

from sonde.launch import collector_lock, collector_starts
from sonde.session import files


def take_lock(root: str, wait_s: float = 1.0) -> int | None:
    """Take the host's one collector lock; None if another collector holds it."""
    fd = files.open_lock(collector_lock(root))
    try:
        # A job that only checks whether there is a collector also holds the lock for an instant.
        if files.take_lock(fd, wait_s):
            return fd
        _withdraw_start(root)
    except OSError:
        pass  # the file system has no locks: no collector is better than several
    os.close(fd)
    return None


def _withdraw_start(root: str) -> None:
    """Take back the start of a collector that leaves at once because there is another."""
    try:
        with open(collector_starts(root), "r+b") as file:
            file.truncate(max(0, os.fstat(file.fileno()).st_size - 1))
    except OSError:
        pass  # nobody counts


def write_lock(lock: int, problem: str | None) -> None:
    """Write our pid into the lock file, and on a second line what keeps us from archiving."""
    os.truncate(lock, 0)
    lines = [str(os.getpid()), *filter(None, [problem])]
    os.write(lock, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def is_replaced(lock: int, root: str) -> bool:
    """Return whether somebody has removed the lock file that we hold, and a job has made a new one.

    Then that job has a collector of its own. While there is no new file, nobody starts another."""
    path = collector_lock(root, create=False)
    try:
        if os.path.samestat(os.fstat(lock), os.stat(path, follow_symlinks=False)):
            return False
        # Some file systems give a file another number each time they are asked.
        with open(path, "rb") as file:
            return file.readline().strip() != str(os.getpid()).encode()
    except OSError:
        return False
