"""The output folder: one monitor at a time; a file `stop.flag` stops it."""

from __future__ import annotations

import contextlib
import os
from typing import IO

from sonde.errors import Error
from sonde.session.files import open_lock, take_lock

FLAG, LOCK, IMAGES = "stop.flag", ".monitor.lock", "img"
REPORTS = ("report.json", "report.md", "report.html")
PICTURES = ("GPU_MEM_Utilization", "GPU_UTI_Utilization", "CPU_GPU_Utilization", "Disk_Utilization",
            "Network_Utilization")  # fmt: skip
STARTING, WAITING, MEASURING = "starting", "waiting", "measuring"


class Taken(Error):
    """Another monitor is writing into the folder."""

    def __init__(self, path: str, pid: str) -> None:
        super().__init__(
            f"process {pid} is measuring into {path}; `touch {os.path.join(path, FLAG)}` stops it, "
            "-o DIR takes another folder"
        )


class Folder:
    """An output folder that no other monitor can use until it is closed."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        try:
            os.makedirs(self.path, exist_ok=True)
            self._fd = open_lock(self.find(LOCK))
            is_ours = take_lock(self._fd)
        except OSError as error:
            raise Error(f"{self.path}: {error.strerror}; -o DIR takes another folder") from None
        if not is_ours:
            os.close(self._fd)
            raise Taken(self.path, read_state(self.path)[0] or "?")
        self.set_state(STARTING)
        # The flag that stopped the last monitor must not stop us, and its report is not ours.
        # Nothing else is removed: users may keep files of their own here.
        pictures = (f"{IMAGES}/{name}.png" for name in PICTURES)
        for name in (FLAG, *map(self.find, (FLAG, *REPORTS, *pictures))):
            with contextlib.suppress(OSError):
                os.unlink(name)

    def find(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return os.path.join(self.path, name)

    def set_state(self, state: str) -> None:
        """Write down what we are doing, for read_state."""
        os.pwrite(self._fd, f"{os.getpid()} {state}\n".encode().ljust(64), 0)

    def has_stop_flag(self) -> bool:
        """Tell whether there is a flag, here or in the working directory."""
        return os.path.exists(self.find(FLAG)) or os.path.exists(FLAG)

    def close(self) -> None:
        """Let another monitor use the folder."""
        # The file stays: a monitor that has it open already would lock a file nobody else sees.
        with contextlib.suppress(OSError):
            os.truncate(self._fd, 0)
        os.close(self._fd)


def open_new(path: str) -> IO[str]:
    """Open a new file. An existing link of that name, in a folder that others may write to, could
    make us overwrite any file of the user's."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(path, "x", encoding="utf-8", errors="backslashreplace", newline="")


def read_state(path: str) -> tuple[str | None, str | None]:
    """Return pid and state of the monitor that uses a folder; None twice if none does."""
    try:
        with open(os.path.join(path, LOCK), encoding="ascii") as file:
            words = file.read().split()
        return (words[0], words[1]) if len(words) == 2 else (None, None)
    except OSError:
        return None, None
