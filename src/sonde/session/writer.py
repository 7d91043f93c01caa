"""Create a session folder for this process, and keep it live."""

from __future__ import annotations

import os
import sys
import time

from sonde import _core, environ, settings
from sonde.errors import Damaged, NotRecording
from sonde.session import ring, texts
from sonde.session.files import (
    ALIVE,
    CONFIG,
    CONTROL,
    HEAP_LOOK,
    META,
    VERSION,
    log,
    write_checked,
)
from sonde.session.memory_limit import find_memory_limit
from sonde.session.process import read_boot_id, read_pid_namespace, read_start_ticks
from sonde.session.records import Meta, RunAbout
from sonde.session.schema import Schema

SPARE = 4  # a ring may grow to five times its size while it waits for a collector
_SIZES = ("ring.bytes", "text.bytes", "stack.bytes")
_LEAST_BYTES = 2**14
MEMORY_SHARE = 64  # where files are memory, none takes more than one part in this many of it

_current: SessionWriter | None = None


def set_current(writer: SessionWriter | None) -> None:
    """Set the session that this process writes from now on."""
    global _current
    _current = writer


def find_current() -> str | None:
    """Return the folder of the session that this process writes, or None if there is none."""
    # After a fork it is the parent's session, until the child begins one of its own.
    is_own = _current is not None and _current.pid == os.getpid()
    return _current.folder if is_own else None  # type: ignore[union-attr]


class SessionWriter:
    """A session that this process writes: the folder, and its mapped files."""

    def __init__(self, root: str, values: settings.Values, parent: str | None) -> None:
        self.values, self.root = values, make_root(root)
        self.machine_code: _core.Map | None = None  # of the sources that ask about it
        self._most_bytes = (find_memory_limit(root) or 2**62) // MEMORY_SHARE
        limit_sizes(values, self._most_bytes)
        self.meta = describe_process(values, parent)
        self.id, self.pid = self.meta.id, self.meta.pid
        self.folder = os.path.join(root, self.id)
        hidden = os.path.join(root, f".{self.id}.new")
        try:
            os.mkdir(hidden, 0o700)
            self._fill(hidden)
            # Renamed last, so that nobody sees a session without its files.
            os.rename(hidden, self.folder)
        except BaseException as error:
            import shutil  # here, because it is slow to import and rarely needed

            _core.alive_release()
            shutil.rmtree(hidden, ignore_errors=True)
            if isinstance(error, OSError):
                raise NotRecording(f"{root}: {error.strerror}") from None
            raise

    def _fill(self, folder: str) -> None:
        # The lock is held until this process ends, execs or stops recording, and proves that it is
        # alive. Some network file systems have no locks; then the mapped control page is the proof.
        self.meta.locked = _core.alive_hold(os.fsencode(os.path.join(folder, ALIVE)))
        self.meta.write(os.path.join(folder, META))
        write_checked(os.path.join(folder, CONFIG), dict(self.values))
        self.text = texts.create_text(folder, int(self.values["text.bytes"]))
        fd = ring.create_file(os.path.join(folder, CONTROL), _core.CONTROL_BYTES)
        try:
            self.page = _core.Map(fd, True)
        finally:
            os.close(fd)
        _core.control_init(self.page, self.pid, self.meta.start_ticks)

    def create_ring(self, schema: Schema, hint_bytes: int | None = None) -> _core.Map:
        """Create the ring of a table in this session."""
        size = int(self.values["ring.bytes"])
        spare = SPARE if self.values["collector"] and self.values["archive"] else 0
        size = min(size, hint_bytes or size)
        if size * (1 + SPARE) > self._most_bytes:
            spare = 0
        try:
            return ring.create_ring(self.folder, schema, size, spare)
        except OSError:
            if not spare:
                raise
            return ring.create_ring(self.folder, schema, size)  # a limit of the process, maybe

    def read_extra_sources(self) -> dict[str, str]:
        """Return the sources that are wanted besides those that the settings switch on, and why if
        nobody asked for them."""
        return {**self._read_look(), **dict.fromkeys(self._read_run_sources(), "")}

    def _read_run_sources(self) -> list[str]:
        control = _core.control_get(self.page)
        if control["run_begun"] == control["run_ended"]:
            return []
        path = os.path.join(self.folder, "runs", _core.run_name(self.page), "run.json")
        try:
            return RunAbout.read(path).sources
        except (FileNotFoundError, Damaged):
            return []

    def _read_look(self) -> dict[str, str]:
        if not os.path.exists(os.path.join(self.folder, HEAP_LOOK)):
            return {}
        from sonde.session import heap_look  # here, because most programs never need it

        look = heap_look.read_look(self.folder)
        # Whoever wished it may be gone.
        is_over = _core.clock_ns() > look.until_ns + heap_look.GRACE_NS
        return {heap_look.SOURCE: look.why} if look.is_on and not is_over else {}

    def learn_rank(self, rank: int, world_size: int) -> None:
        """Write down which rank of its job this process is, unless its launcher has said so."""
        if self.meta.rank is None:
            self.meta.rank, self.meta.world_size = rank, world_size
            try:
                self.meta.write(os.path.join(self.folder, META))
            except OSError as error:  # a full disk: what follows is recorded without it
                self.log(f"the rank could not be written: {error}")

    def log(self, line: str) -> None:
        """Add a line to the session's log."""
        log(self.folder, line)

    def close(self, state: int) -> None:
        """Write how the recording ended, and release the lock."""
        _core.control_on(self.page, False)
        _core.control_state(self.page, state)
        _core.alive_release()


def limit_sizes(values: settings.Values, most_bytes: int) -> None:
    """Set the sizes of files to this, if they are larger: it is a share of the memory."""
    for name in _SIZES:
        most = max(most_bytes, _LEAST_BYTES)
        if int(values[name]) > most:
            values[name] = most
            values.origins[name] = "little memory"


def make_root(root: str) -> str:
    """Create the root folder if it is missing; raise NotRecording if others can write to it."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        status = os.lstat(root)
        if status.st_uid != os.getuid():
            raise NotRecording(
                f"{root} belongs to another user; set SONDE_DIR to a folder of your own"
            )
        if status.st_mode & 0o022:
            raise NotRecording(f"other users can write to {root}; run `chmod go-w {root}`")
    except OSError as error:
        raise NotRecording(
            f"{root}: {error.strerror}; set SONDE_DIR to a folder that you can write to"
        ) from None
    return root


def describe_process(values: settings.Values, parent: str | None) -> Meta:
    """Return the contents of meta.json for this process."""
    monotonic, wall = _core.clock_ns(), time.time_ns()
    pid, host = os.getpid(), os.uname().nodename
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall // 10**9))
    whose = environ.read_identity()
    return Meta(
        format=VERSION,
        id=f"{host}-{pid}-{stamp}.{wall % 10**9 // 1000:06d}",
        host=host,
        pid=pid,
        ppid=os.getppid(),
        parent=parent,
        uid=os.getuid(),
        start_ticks=read_start_ticks(pid) or 0,
        boot_id=read_boot_id(),
        pid_namespace=read_pid_namespace(),
        argv=list(getattr(sys, "orig_argv", sys.argv)),
        cwd=_current_folder(),
        executable=sys.executable,
        python=sys.version.split()[0],
        machine=os.uname().machine,
        kernel=os.uname().release,
        monotonic_ns=monotonic,
        wall_ns=wall,
        locked=True,
        config=dict(values),
        config_from=values.origins,
        launcher=whose.launcher,
        rank=whose.rank,
        world_size=whose.world_size,
        local_rank=whose.local_rank,
        job=whose.job,
        job_kind=whose.job_kind,
        job_env=whose.job_env,
        environment=environ.read_environment(str(values.get("environment.values", ""))),
    )


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None
