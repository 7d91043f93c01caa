"""A file descriptor that is closed with the object that holds it."""

from __future__ import annotations

import os


class Descriptor:
    """A descriptor with an owner, which every call of `select`, `fcntl` and `os` takes by fileno().

    A FileIO would close itself as well, but complain of it (ResourceWarning): nobody has called its
    close()."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the number; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Close it; nothing happens the second time."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
