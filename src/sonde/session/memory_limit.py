"""How much memory there is for a recording whose folder is memory itself, as in /dev/shm.

On a disk, the kernel writes pages of our files out when memory is short. On tmpfs it cannot: they
count as memory of the job, and a job that reaches its limit is killed."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of version 2 and of version 1
_KINDS = ("tmpfs", "ramfs", "devtmpfs")


def find_memory_limit(folder: str) -> int | None:
    """Return the size of the file system or the limit of our cgroup, whichever is less; None if
    the folder is on a disk."""
    try:
        device = os.stat(folder).st_dev
        # A device has a number; file systems without one are in memory, remote or layered.
        if os.major(device) or not _is_memory(f"0:{os.minor(device)}"):
            return None
        status = os.statvfs(folder)
        return min([status.f_blocks * status.f_frsize, *_list_limits()])
    except OSError:
        return None


def _is_memory(device: str) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            front, _, back = line.partition(" - ")
            if front.split(None, 3)[2] == device:
                return back.split(None, 1)[0] in _KINDS
    return False


def _list_limits() -> Iterator[int]:
    """Yield the limits of our cgroup and of those above it; in a container, of the container."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        groups = [line.rstrip("\n").split(":", 2) for line in file]
    for _number, names, path in groups:
        if names and "memory" not in names.split(","):
            continue
        parts = [part for part in path.split("/") if part]
        for folder in _GROUPS:
            for depth in range(len(parts) + 1):
                yield from _read_limit("/".join([folder, *parts[:depth]]))


def _read_limit(folder: str) -> Iterator[int]:
    for name in _LIMITS:
        try:
            with open(f"{folder}/{name}", encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)
