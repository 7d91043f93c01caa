"""Write and read the files of a session: in folders of our own, whole, checked, under a lock."""

from __future__ import annotations

import os
import stat
import time

from sonde import _core
from sonde.errors import Damaged, NotYours
from sonde.session import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

(
    META, ALIVE, CONTROL, CONFIG, SEALED, EXIT, LOG, NODES, HEAP_NODES, LOCALS, EVENT_TOTALS,
    MACHINE_CODE, MEMORY_KILLS, HEAP_LOOK,
) = (
    "meta.json", "alive", "control", "config.json", "sealed.json", "exit.json", "log",
    "stack.nodes", "heap.nodes", "locals.json", "event.totals", "machine.code",
    "memory_kills.json", "heap_look.json",
)  # fmt: skip
VERSION = 1
LOG_BYTES = 256 * 1024
LOCK_S = 5.0  # the settings of a session are locked for an instant only

# ---- whose folder it is ---------------------------------------------------------------------


class OwnFolder:
    """A folder of this user's that nobody else can write to, held open for the block; NotYours if
    it is somebody else's.

    The block gets a path that leads through the open folder. Under its usual path, whoever owns a
    folder further up could put a link in its place after it was checked. `parts` are folders in it:
    never links, and created if `make` says so."""

    __slots__ = ("_fd", "folder", "make", "parts")

    def __init__(self, folder: str, *parts: str, make: bool = False) -> None:
        self.folder, self.parts, self.make = folder, parts, make

    def __enter__(self) -> str:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._fd = os.open(self.folder, flags)
        try:
            _require_own(self._fd, self.folder)
            for part in self.parts:
                if os.sep in part or part in ("", ".", ".."):
                    raise Damaged(f"{self.folder}: {part!r} is not the name of a folder")
                self._enter(part, flags | os.O_NOFOLLOW)
        except BaseException:
            os.close(self._fd)
            raise
        return f"/proc/self/fd/{self._fd}"

    def _enter(self, part: str, flags: int) -> None:
        outer = self._fd
        if self.make:
            try:
                os.mkdir(part, 0o700, dir_fd=outer)
            except FileExistsError:
                pass
        self._fd = os.open(part, flags, dir_fd=outer)
        os.close(outer)
        _require_own(self._fd, os.path.join(self.folder, part))

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _require_own(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        name = _name_user(status.st_uid)
        raise NotYours(
            f"{path} belongs to user {name}, and sonde writes only into folders of the user who "
            f"runs it; run this as {name}: `sudo -u {name} sonde …`"
        )
    if status.st_mode & 0o022:
        raise NotYours(f"other users can write to {path}; run `chmod go-w {path}`")


def find_refusal(folder: str) -> str | None:
    """Return why this user may not look into a folder; None if they may, or there is none."""
    try:
        os.scandir(folder).close()
    except PermissionError:
        while not os.path.exists(folder) and folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)  # the outer one that keeps us out
        name = _name_user(os.stat(folder).st_uid)
        return f"{folder} belongs to user {name}, and nobody else may read it"
    except OSError:
        pass
    return None


def _name_user(uid: int) -> str:
    import pwd  # here, because the job never needs it

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # as sudo writes it


# ---- write, then rename ---------------------------------------------------------------------


class Replacement:
    """A hidden file that replaces `path` when the block ends, and is removed if the block fails.

    The block gets the hidden file's path and writes to it. A reader of `path` sees the old file or
    the new one, never a part of one."""

    __slots__ = ("hidden", "path")

    def __init__(self, path: str) -> None:
        folder, name = os.path.split(path)
        self.path, self.hidden = path, os.path.join(folder, f".{name}.{os.getpid()}.tmp")

    def __enter__(self) -> str:
        # An earlier process with this pid may have died halfway. The name is predictable, so
        # another user may have put a link there, which must not be written through.
        remove_quietly(self.hidden)
        return self.hidden

    def __exit__(self, kind: object, _error: object, _traceback: object) -> None:
        try:
            if kind is None:
                os.replace(self.hidden, self.path)
        finally:
            # It is gone if all went well. On a full disk even half a file takes up space.
            try:
                os.unlink(self.hidden)
            except OSError:
                pass


def write_whole(path: str, data: str | bytes, *, sync: bool = False) -> None:
    """Replace a file as a whole; with `sync`, its bytes are on disk before it gets its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with Replacement(path) as hidden, open(os.open(hidden, flags, 0o600), "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def remove_quietly(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


# ---- locks ----------------------------------------------------------------------------------


class Locked:
    """A file or folder that only this process holds for the block; TimeoutError if it cannot.

    The kernel releases it even if the process is killed. A file is created if it does not exist."""

    __slots__ = ("_fd", "path", "timeout_s")

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path, self.timeout_s = path, timeout_s

    def __enter__(self) -> None:
        self._fd = open_lock(self.path)
        try:
            if not take_lock(self._fd, self.timeout_s):
                from errno import ETIMEDOUT

                raise TimeoutError(
                    ETIMEDOUT, f"another process has locked it for {self.timeout_s:g} s", self.path
                )
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        import fcntl

        # Unlocked, not just closed: a child forked meanwhile has the file open as well.
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


def open_lock(path: str) -> int:
    """Open a file or folder to be locked; create the file if it does not exist."""
    if os.path.isdir(path):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def take_lock(fd: int, timeout_s: float = 0.0) -> bool:
    """Lock an open file for this process alone; return False if another holds it too long."""
    import fcntl  # here, because most jobs never lock anything

    deadline, nap = time.monotonic() + timeout_s, 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(nap)
        nap = min(nap * 2, 0.02)


# ---- checked JSON ---------------------------------------------------------------------------


def write_checked(path: str, values: dict[str, object]) -> None:
    """Write JSON with a checksum: a bit that flips on the disk must not change an answer."""
    check = _core.check_bytes(json_text.dump(values, sort=True).encode())
    lines = [*json_text.dump_lines(values), f' "check": {check}']
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_checked(path: str) -> dict[str, object]:
    """Read what write_checked wrote; raise Damaged if the file is anything else."""
    import json  # as in read_json

    values = read_json(path)
    check = values.pop("check", None)
    try:
        # What json_text would return, in a tenth of the time: agents read hundreds of files.
        is_sound = check == _core.check_bytes(json.dumps(values, sort_keys=True).encode())
    except RecursionError:
        is_sound = False
    if not is_sound:
        raise Damaged(f"{path} is damaged")
    return values


def read_json(path: str) -> dict[str, object]:
    """Read a JSON object; raise Damaged if the file holds none."""
    import json  # here, because it is slow to import and a start reads no JSON

    with open_plain(path) as file:
        try:
            found = json.loads(file.read().decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise Damaged(f"{path} is not valid JSON") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path} is not a JSON object")
    return found


def open_plain(path: str) -> BinaryIO:
    """Open a file for reading; raise Damaged if it is a pipe or a device, OSError if a link."""
    # Without blocking, because opening a pipe waits for somebody who writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Damaged(f"{path} is not a file")
    return open(fd, "rb")


# ---- the log --------------------------------------------------------------------------------


def log(folder: str, line: str) -> None:
    """Add a line to a session's log, unless it holds LOG_BYTES already."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(os.path.join(folder, LOG), flags, 0o600)
        try:
            if os.fstat(fd).st_size < LOG_BYTES:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                os.write(fd, f"{stamp} {line.rstrip()}\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
    except OSError:
        pass  # a full disk costs the log line and nothing else
