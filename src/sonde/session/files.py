"""How files of a session are written and read: whole or not at all, checked, locked, logged."""

from __future__ import annotations

import json
import os
import stat
import time

from sonde import _core
from sonde.errors import Damaged

META, ALIVE, CONTROL, CONFIG, SEALED, LOG, NODES, LOCALS, LIVE = (
    "meta.json", "alive", "control", "config.json", "sealed.json", "log", "stack.nodes",
    "locals.json", "event.live",
)  # fmt: skip
VERSION = 1


def write_atomically(path: str, text: str) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one."""
    hidden = f"{path}.{os.getpid()}.tmp"
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(hidden, path)


def write_checked(path: str, values: dict[str, object]) -> None:
    """JSON with a check of its own: a bit that flips on disk must not change an answer."""
    body = json.dumps(values, indent=1)
    check = _core.check_bytes(_canonical(values))
    write_atomically(path, f'{body[:-2]},\n "check": {check}\n}}\n')


def read_checked(path: str) -> dict[str, object]:
    """What write_checked wrote; Damaged if it is anything else."""
    values = read_json(path)
    if values.pop("check", None) != _core.check_bytes(_canonical(values)):
        raise Damaged(f"{path} is damaged")
    return values


def _canonical(values: dict[str, object]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def read_json(path: str) -> dict[str, object]:
    """A JSON object from a file of a session."""
    # Not blocking: somebody may have put a pipe there.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, encoding="utf-8", errors="replace") as file:
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError
            found = json.load(file)
        except (ValueError, RecursionError):
            raise Damaged(f"{path} is not sound JSON") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path} is not a JSON object")
    return found


def log(folder: str, line: str) -> None:
    """Add a line to a session's log, up to 256 KiB."""
    try:
        fd = os.open(
            os.path.join(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            if os.fstat(fd).st_size < 256 * 1024:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                os.write(fd, f"{stamp} {line.rstrip()}\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
    except OSError:
        pass  # a full disk costs the log line, nothing else
