"""Session folders: who was recorded, where, and whether it still runs."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator

from sonde import _core, settings
from sonde.errors import Damaged, Newer, NoSession, NotRecording
from sonde.session import ring, texts
from sonde.session.schema import Schema

META, ALIVE, CONTROL, CONFIG, SEALED, LOG, NODES, LOCALS, LIVE = (
    "meta.json", "alive", "control", "config.json", "sealed.json", "log", "stack.nodes",
    "locals.json", "event.live",
)  # fmt: skip
STATES = ("running", "ended", "killed", "unknown")
VERSION = 1


def read_start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """When the kernel says a process started; None if it is gone or a zombie."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            # The name may hold spaces and brackets; the fields follow its last bracket.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def read_boot_id() -> str | None:
    """Which start of the machine this is: pids mean nothing across two of them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def write_atomically(path: str, text: str) -> None:
    """Replace a file as a whole: a reader sees the old one or the new one."""
    hidden = f"{path}.{os.getpid()}.tmp"
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(hidden, path)


def make_root(root: str) -> str:
    """The root folder, made if need be, ours alone."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        status = os.lstat(root)
        if status.st_uid != os.getuid():
            raise NotRecording(
                f"{root} belongs to another user; set SONDE_DIR to a folder of yours"
            )
        if status.st_mode & 0o022:
            raise NotRecording(f"{root} can be written by other users; `chmod go-w` it")
    except OSError as error:
        raise NotRecording(
            f"{root}: {error.strerror}; set SONDE_DIR to a folder that can be written"
        ) from None
    return root


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


# ---- the job's side -------------------------------------------------------------------------


class Writing:
    """A session that this process writes: the folder, its files and what keeps them open."""

    def __init__(self, root: str, values: dict[str, settings.Value], parent: str | None) -> None:
        self.values, self.root = values, make_root(root)
        self.meta = describe_process(values, parent)
        self.id, self.pid = str(self.meta["id"]), os.getpid()
        self.folder = os.path.join(root, self.id)
        hidden = os.path.join(root, f".{self.id}.new")
        try:
            os.mkdir(hidden, 0o700)
            self._fill(hidden)
            # All or nothing: nobody sees a session without its files.
            os.rename(hidden, self.folder)
        except BaseException as error:
            import shutil  # only when something is wrong: it is slow to import

            _core.alive_release()
            shutil.rmtree(hidden, ignore_errors=True)
            if isinstance(error, OSError):
                raise NotRecording(f"{root}: {error.strerror}") from None
            raise

    def _fill(self, folder: str) -> None:
        # Held until this process ends, execs or stops: the proof that it lives. Some network file
        # systems have no locks; then the pid has to do.
        self.meta["locked"] = _core.alive_hold(os.fsencode(os.path.join(folder, ALIVE)))
        write_checked(os.path.join(folder, META), self.meta)
        write_checked(os.path.join(folder, CONFIG), dict(self.values))
        text_bytes = self.values["text.bytes"]
        assert isinstance(text_bytes, int)
        self.text = texts.create_text(folder, text_bytes)
        fd = ring.create_file(os.path.join(folder, CONTROL), _core.CONTROL_BYTES)
        try:
            self.page = _core.Map(fd, True)
        finally:
            os.close(fd)
        _core.control_init(self.page, self.pid, int(str(self.meta["start_ticks"])))

    def create_ring(self, schema: Schema, hint_bytes: int | None = None) -> _core.Map:
        """A ring for a table in this session."""
        size = self.values["ring.bytes"]
        assert isinstance(size, int)
        return ring.create_ring(self.folder, schema, min(size, hint_bytes or size))

    def log(self, line: str) -> None:
        """Add a line to the session's log."""
        log(self.folder, line)

    def close(self, state: int) -> None:
        """Say how it ended and let go."""
        _core.control_on(self.page, False)
        _core.control_state(self.page, state)
        _core.alive_release()


def read_run_sources(folder: str, page: _core.Map) -> list[str]:
    """The sources that the run under way wants beside those that are on; see runs.py."""
    control = _core.control_get(page)
    if control["run_begun"] == control["run_ended"]:
        return []
    try:
        about = read_checked(os.path.join(folder, "runs", _core.run_name(page), "run.json"))
    except (OSError, Damaged):
        return []
    sources = about.get("sources")
    return sources if isinstance(sources, list) else []


def describe_process(values: dict[str, settings.Value], parent: str | None) -> dict[str, object]:
    """What meta.json says of this process."""
    monotonic, wall = _core.clock_ns(), time.time_ns()
    pid, host = os.getpid(), os.uname().nodename
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall // 10**9))
    argv = list(getattr(sys, "orig_argv", sys.argv))
    return {
        "format": VERSION,
        "id": f"{host}-{pid}-{stamp}.{wall % 10**9 // 1000:06d}",
        "host": host,
        "pid": pid,
        "ppid": os.getppid(),
        "parent": parent,
        "uid": os.getuid(),
        "start_ticks": read_start_ticks(pid) or 0,
        "boot_id": read_boot_id(),
        "argv": argv,
        "cwd": _current_folder(),
        "executable": sys.executable,
        "python": sys.version.split()[0],
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "clock": {"monotonic_ns": monotonic, "wall_ns": wall},
        "locked": True,
        "config": dict(values),
        **settings.read_identity(),
    }


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


# ---- everyone else's side ---------------------------------------------------------------------


class Session:
    """A session folder, read from any process, live or long ended."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.meta = self._read_meta()
        self.id = str(self.meta["id"])
        self.host = str(self.meta["host"])
        self.pid = self._number("pid")
        rank = self.meta.get("rank")
        self.rank = rank if isinstance(rank, int) else None
        clock = self.meta["clock"]
        assert isinstance(clock, dict)
        self.wall_offset_ns = int(clock["wall_ns"]) - int(clock["monotonic_ns"])
        self.start_wall_ns = int(clock["wall_ns"])

    def _number(self, key: str) -> int:
        value = self.meta[key]
        assert isinstance(value, int)
        return value

    def path(self, *parts: str) -> str:
        """A file of this session."""
        return os.path.join(self.folder, *parts)

    def _read_meta(self) -> dict[str, object]:
        path = self.path(META)
        try:
            meta = read_checked(path)
            clock = meta["clock"]
            whole = isinstance(clock, dict) and all(
                isinstance(value, int)
                for value in (meta["pid"], meta["format"], clock["wall_ns"], clock["monotonic_ns"])
            )
            if not whole or not isinstance(meta["id"], str) or not isinstance(meta["host"], str):
                raise KeyError
        except (OSError, KeyError, TypeError):
            raise Damaged(f"{self.folder} is not a session folder: no sound {META} in it") from None
        if meta["format"] > VERSION:  # type: ignore[operator]  # checked above
            raise Newer(self.folder)
        return meta

    def read_sealed(self) -> dict[str, object] | None:
        """The last word on an ended session, written by the collector; None before that."""
        try:
            return read_checked(self.path(SEALED))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Damaged(f"{self.path(SEALED)}: {error.strerror}") from None

    def read_config(self) -> dict[str, object]:
        """The settings in force."""
        try:
            return read_checked(self.path(CONFIG))
        except FileNotFoundError:
            raise NoSession(f"{self.folder} has been removed or has lost its {CONFIG}") from None
        except OSError as error:
            raise Damaged(f"{self.path(CONFIG)}: {error.strerror}") from None

    def map_control(self, *, writable: bool = False) -> _core.Map:
        """The control page."""
        return ring.map_file(self.path(CONTROL), writable=writable)

    def read_control(self) -> dict[str, int]:
        """What the control page says."""
        try:
            return _core.control_get(self.map_control())
        except _core.Damaged:
            raise Damaged(f"{self.path(CONTROL)} is cut or damaged") from None
        except _core.Newer:
            raise Newer(self.path(CONTROL)) from None
        except OSError as error:
            raise Damaged(f"{self.path(CONTROL)}: {error.strerror}") from None

    def find_rings(self) -> list[str]:
        """The paths of the rings that are here."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            raise NoSession(f"{self.folder} has been removed") from None
        return [self.path(name) for name in names if name.endswith(ring.SUFFIX)]

    def is_here(self) -> bool:
        """Was it recorded on this machine, since it last started?"""
        return self.host == os.uname().nodename and self.meta.get("boot_id") == read_boot_id()

    def is_alive(self) -> bool:
        """Is a process still recording into this folder?"""
        try:
            held = self.meta.get("locked") is not False and _core.alive_probe(
                os.fsencode(self.path(ALIVE))
            )
        except OSError:
            held = False
        # Without the lock (there are none here, or the job closed "all" its files) the process
        # itself tells: it has the page mapped, until it ends or becomes another program.
        return held or (self._is_same_process() and self._is_running() and self._is_mapped())

    def _is_running(self) -> bool:
        try:
            return self.read_control()["state"] in (_core.STARTING, _core.RUNNING)
        except Damaged:
            return False

    def _is_same_process(self) -> bool:
        return self.is_here() and read_start_ticks(self.pid) == self.meta.get("start_ticks")

    def _is_mapped(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as file:
                page = os.path.realpath(self.path(CONTROL))
                return any(line.rstrip("\n").endswith(page) for line in file)
        except OSError:
            return False

    def find_state(self) -> str:
        """`running`, `ended`, `killed` (no goodbye: a signal, a crash, os._exit) or `unknown`."""
        sealed = self.read_sealed()
        if sealed is not None:
            return str(sealed.get("state", "unknown"))
        if self.host != os.uname().nodename:
            return "unknown"
        if self.is_alive():
            return "running"
        try:
            state = self.read_control()["state"]
        except Damaged:
            return "unknown"
        if state in (_core.STOPPED, _core.EXITED):
            return "ended"
        # The lock is free though the process lives: it became another program (exec).
        return "ended" if self._is_same_process() else "killed"


def list_sessions(root: str) -> Iterator[Session]:
    """Every readable session under a root, oldest first; damaged folders are passed over."""
    found = []
    for folder in list_folders(root):
        try:
            found.append(Session(folder))
        except (Damaged, Newer):
            continue
    yield from sorted(found, key=lambda session: session.start_wall_ns)


def list_folders(root: str) -> list[str]:
    """The session folders under a root, sound or not."""
    try:
        with os.scandir(root) as entries:
            return sorted(
                entry.path
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []
