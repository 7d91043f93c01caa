"""A process that has heavy modules imported already, and forks once for each program.

Importing torch takes two seconds of a processor, DuckDB and Arrow take half a second, and hundreds of
tests start a process that needs them. A fork of a process that has imported them, and has only one
thread, is as good as a new one for nearly all of them. Use a real process (`run`, `start`) where a test
is about start-up itself: the hook, the order of imports, the command line as /proc shows it.

    zygote = Zygote(["torch"])
    process = zygote.start([path, "an argument"], env, cwd)      # has the methods of Popen that tests use
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from support.places import TESTS

_MOST = 1 << 20  # bytes of one request
_ANSWER_S = 200.0  # the first answer waits for imports, on a machine that others use as well
_STREAMS = (
    ("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"),
)  # fmt: skip


class Forked:
    """A program in a fork of the zygote; as `subprocess.Popen` with text in pipes."""

    def __init__(self, zygote: Zygote, argv: list[str], env: dict[str, str], cwd: str) -> None:
        ends = [os.pipe(), os.pipe(), os.pipe()]
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = ends
        theirs = [theirs_in, theirs_out, theirs_err]
        self.args, self.returncode = argv, None
        self.said = ["", ""]
        self.readers: list[threading.Thread] = []
        self._zygote = zygote
        try:
            self.pid = zygote.ask({"argv": argv, "env": env, "cwd": cwd}, theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        self.stdin = os.fdopen(ours_in, "w", encoding="utf-8")
        self.stdout = os.fdopen(ours_out, encoding="utf-8")
        self.stderr = os.fdopen(ours_err, encoding="utf-8")

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.find_status(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._zygote.find_status(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(self, text: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """As Popen's: what came on stdout and stderr until both were closed."""
        try:
            if text and not self.stdin.closed:
                self.stdin.write(text)
            self.stdin.close()
        except BrokenPipeError:
            pass
        found = self.said
        readers = self.readers = [
            threading.Thread(target=_read, args=(file, found, at), daemon=True)
            for at, file in enumerate((self.stdout, self.stderr))
        ]
        deadline = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0, *found)
        self.wait(None if deadline is None else max(1.0, deadline - time.monotonic()))
        return found[0], found[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _list_family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found


def describe_process(pid: int) -> str:
    """Where each thread of a process is."""
    lines = [f"process {pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"]
    for task in Path(f"/proc/{pid}/task").iterdir():
        words = [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
        lines.append("  " + " ".join(words))
    spy = shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if spy is not None:
        seen = subprocess.run(
            [spy, "dump", "-n", "-p", str(pid)], capture_output=True, text=True, timeout=60
        )
        lines.append(seen.stdout or seen.stderr)
    return "\n".join(lines)


def _read(file: io.TextIOBase, found: list[str], at: int) -> None:
    if not file.closed:
        found[at] = file.read()
        file.close()


class Zygote:
    """The process that forks; it is started when the first program is."""

    def __init__(self, modules: list[str]) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._heard = b""
        self._status: dict[int, int] = {}

    @property
    def pid(self) -> int | None:
        """The pid of the process that forks."""
        return None if self._process is None else self._process.pid

    def start(self, argv: list[str], env: dict[str, str], cwd: str | None = None) -> Forked:
        return Forked(self, argv, env, cwd or os.getcwd())

    def run(
        self, argv: list[str], env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        process = self.start(argv, env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # Whoever has the other end of a pipe is ended as well, and what they did is told.
            told = [describe_process(pid) for pid in _list_family(process.pid)]
            for pid in _list_family(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for reader in process.readers:
                reader.join(60)
            lines = [f"no end after {timeout:g} s", *told, *process.said]
            raise AssertionError("\n".join(lines)) from None
        return subprocess.CompletedProcess(argv, process.wait(timeout), out, err)

    def ask(self, request: dict[str, object], fds: list[int]) -> int:
        """Have it fork; the pid of the program."""
        line = self._open()
        body = json.dumps(request).encode()
        assert len(body) < _MOST
        # The length first: one message of a stream may come in pieces.
        line.sendmsg(
            [len(body).to_bytes(4, "little")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))],
        )
        line.sendall(body)
        while True:
            answer = self._hear(_ANSWER_S)
            if answer is None:
                self._give_up()
                raise AssertionError("the zygote does not answer")
            if "pid" in answer and "status" not in answer:
                self._status.pop(answer["pid"], None)  # of an earlier program with this pid
                return int(answer["pid"])
            self._status[answer["pid"]] = answer["status"]

    def find_status(self, pid: int, timeout: float | None) -> int | None:
        """The exit status of a program, or None if it still runs when the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self._status:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            answer = self._hear(left)
            if answer is None:
                return None
            self._status[answer["pid"]] = answer["status"]
        return self._status[pid]

    def stop(self) -> None:
        if self._line is not None and self._process is not None:
            self._line.close()
            self._process.wait(30)
            self._line = self._process = None

    def _give_up(self) -> None:
        """Leave a process that does not answer: a late answer would be taken for that of another."""
        assert self._line is not None and self._process is not None
        self._process.kill()
        self._line.close()
        self._process.wait()
        self._line = self._process = None
        self._heard = b""

    def _open(self) -> socket.socket:
        if self._line is None:
            ours, theirs = socket.socketpair()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.zygote", str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()], cwd=TESTS, stdin=subprocess.DEVNULL,
                env={
                    # A test that records itself asks its children to do the same: not this one.
                    **{k: v for k, v in os.environ.items() if not k.startswith("SONDE")},
                    "OPENBLAS_NUM_THREADS": "1",  # numpy's: threads do not fork
                },
            )  # fmt: skip
            theirs.close()
            self._line = ours
        return self._line

    def _hear(self, timeout: float | None) -> dict[str, int] | None:
        assert self._line is not None
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._line], [], [], timeout)
            if not ready:
                return None
            said = self._line.recv(65536)
            assert said, "the zygote has ended"
            self._heard += said
        one, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, int] = json.loads(one)
        return found


# ---- in the zygote -------------------------------------------------------------------------------


def _serve(line: socket.socket) -> dict[str, object]:
    """Fork for each request; returns the request in the child that is to do it."""
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(line, children)
        if line in ready:
            request, fds = _receive(line)
            if request is None:
                for pid in children:  # the tests were ended: nobody else would end these
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (woken, wake):
                    os.close(fd)
                line.close()
                for number, fd in enumerate(fds):
                    os.dup2(fd, number)
                    os.close(fd)
                return request
            children.add(pid)
            for fd in fds:
                os.close(fd)
            line.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _check_threads() -> None:
    """A fork of several threads is not a new process. The allocator of Arrow begins its own anew in
    a child; it has its name only a moment after it was started."""
    deadline = time.monotonic() + 10
    while True:
        tasks = Path("/proc/self/task").iterdir()
        names = [(task / "comm").read_text().strip() for task in tasks]
        if len([name for name in names if "jemalloc" not in name]) == 1:
            return
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


def _reap(line: socket.socket, children: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        children.discard(pid)
        said = {"pid": pid, "status": os.waitstatus_to_exitcode(status)}
        line.sendall(json.dumps(said).encode() + b"\n")


def _receive(line: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
    head, ancillary, _, _ = line.recvmsg(4, socket.CMSG_SPACE(3 * 4))
    if not head:
        return None, []
    fds = array.array("i")
    for _level, _kind, data in ancillary:
        fds.frombytes(data)
    body, length = b"", int.from_bytes(head, "little")
    while len(body) < length:
        body += line.recv(length - len(body))
    return json.loads(body), list(fds)


def _prepare(request: dict[str, object]) -> tuple[str, dict[str, object]]:
    """Make this fork what a new process would be; the code to run, and its names."""
    import tempfile

    argv, env = request["argv"], request["env"]
    assert isinstance(argv, list) and isinstance(env, dict)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    tempfile.tempdir = None
    time.tzset()
    for number, (name, mode, errors) in enumerate(_STREAMS):
        if mode == "w" and argv[0] != "-m":  # as `python -u program.py`
            raw = open(number, "wb", 0, closefd=False)  # noqa: SIM115
            file = io.TextIOWrapper(raw, "utf-8", errors, write_through=True)
        else:
            size = 1 if name == "stderr" else -1
            file = open(number, mode, size, "utf-8", errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    if argv[0] == "-m":
        sys.argv = [argv[1], *argv[2:]]
        sys.path[0] = str(request["cwd"])
        code = f"import runpy; runpy.run_module({argv[1]!r}, run_name='__main__', alter_sys=True)"
        path = "<zygote>"
    else:
        path = argv[0]
        sys.argv = list(argv)
        sys.path[0] = os.path.dirname(path)
        with open(path, encoding="utf-8") as file:
            code = file.read()
    sys.orig_argv = [sys.executable, *argv]
    return code, {"path": path}


def _end(status: int) -> None:
    """End as Python does, up to the point where it would free every module: that copies all the
    memory that a fork shares, and takes more than a second with torch."""
    import atexit
    import os
    import sys
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        for file in (sys.stdout, sys.stderr):
            if file is not None and not file.closed:
                file.flush()
    except OSError:
        sys.exit(status)  # nobody reads: Python has its own way to end then
    os._exit(status & 0xFF)


if __name__ == "__main__":
    _line = socket.socket(fileno=int(sys.argv[1]))
    _line.set_inheritable(False)
    for _name in sys.argv[2:]:
        __import__(_name)
    _check_threads()
    gc.collect()
    gc.freeze()  # a child's collections then neither visit nor copy what was imported
    _code, _about = _prepare(_serve(_line))
    atexit.register(gc.unfreeze)  # DuckDB complains of what is not freed in the end
    # The program is __main__, as it would be, and nothing of ours is among its names.
    _path = str(_about["path"])
    _names = sys.modules["__main__"].__dict__
    for _key in set(_names) - {"__name__", "__builtins__", "_code", "_path", "_names", "_end"}:
        del _names[_key]
    _names.update(__file__=_path, __doc__=None, __spec__=None, __package__=None, __loader__=None)
    _status = 0
    try:
        exec(compile(_names.pop("_code"), _path, "exec"), _names)
    except SystemExit as _left:
        if not isinstance(_left.code, int | None):
            raise
        _status = _left.code or 0
    _end(_status)
