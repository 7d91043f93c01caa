"""The claim of a job to the path of its trace file: of several jobs with one path, one has it."""

from __future__ import annotations

import hashlib
import os
import time

from sonde.session import files, process

CLAIM_S = 15.0  # at most, to wait for the last file of a job that has ended


def name_lock(path: str, root: str) -> str:
    """Return the file that is locked while a job writes to this path."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(root, f".trace-{name}.lock")


def claim(lock: str, pid: int) -> tuple[str, int] | None:
    """Claim a path for a job while this process runs; return None if another job has it.

    Ranks and workers may all have been given the same path. The last file of a job that was killed
    may be being written right now: wait for that."""
    deadline_s = time.monotonic() + CLAIM_S
    while True:
        fd = files.open_lock(lock)
        if _lock(fd, lock):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{pid} {process.read_start_ticks(pid) or 0}".encode(), 0)
            return lock, fd
        holder = os.pread(fd, 64, 0).decode().split()
        os.close(fd)
        is_used = len(holder) == 2 and str(process.read_start_ticks(int(holder[0]))) == holder[1]
        if is_used or time.monotonic() > deadline_s:
            return None
        time.sleep(0.01)


def _lock(fd: int, path: str) -> bool:
    """Lock a file; return whether that worked and the path still leads to this file."""
    try:
        return files.take_lock(fd) and os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
