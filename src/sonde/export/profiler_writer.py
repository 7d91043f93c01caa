"""The process that writes the trace files of a job's profiler.

The job sends requests over a line, one JSON object each; see job/mxnet/writer_line.py. The writer
reads the session folder like any reader. When the line breaks, or the job has ended while a child
keeps the line open, it writes the last file and exits. A file is complete at every moment."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sonde.errors import Error
from sonde.export.path_claim import claim, name_lock
from sonde.session import Session, files, process
from sonde.session.profiler_line import join, name_file

if TYPE_CHECKING:
    from sonde.analysis.window import Window
    from sonde.store.recording import Recording

CHECK_S = 1.0  # between two checks whether the job is alive
IDLE_S = 60.0  # exit after this long without a profile: the writer takes memory
_MOST_KEPT, _MOST_ASKED = 1000, 100  # windows
_REST = 3  # after a refresh, wait this many times as long as it took

# The tables that are left out of a trace unless the profile's settings ask for their part.
_PARTS = {
    "stacks": ("python.stack_sample",),
    "torch": (
        "python.torch_trace",
        "python.operator",
        "python.torch_op",
        "python.torch_kernel",
        "python.collective",
    ),
    "memory": ("system.memory", "system.process"),
    "system": ("system.cpu", "system.gpu", "system.disk", "system.network", "python.gc_pause"),
}

# Devices have the names of the original profiler.
_MEMORY = """\
SELECT t_ns, 'cpu/0' AS device, rss_bytes / 1000 AS kilobytes
FROM system.process WHERE process = {pid}
UNION ALL
SELECT t_ns, 'gpu/' || split_part(device, ':', 2), allocated_bytes / 1000
FROM python.torch_memory WHERE device LIKE 'cuda:%'
"""
# Categories and names as in the table of dumps().
_MODULES = """\
SELECT kind, name, COUNT(*) AS count, SUM(ns)::BIGINT AS total_ns, MIN(ns) AS min_ns,
    MAX(ns) AS max_ns
FROM (SELECT CASE stage WHEN 'step' THEN 'optimizer' ELSE 'module,' || stage END AS kind,
        module AS name, (duration * 1e9)::BIGINT AS ns, t_ns FROM python.torch_trace
    UNION ALL SELECT 'collective', op, dur_ns, t_ns FROM python.collective WHERE state = 'ended')
    JOIN (VALUES {windows}) AS during(begin_ns, end_ns) ON t_ns >= begin_ns AND t_ns < end_ns
WHERE ns IS NOT NULL GROUP BY ALL
"""


class ProfileFile:
    """One profile of a job, and the trace file that it is written to."""

    def __init__(self, request: dict[str, Any], root: str) -> None:
        self.session = Session(request["session"])
        self.wish: str | None = request["path"]  # None if no file is wanted
        self.path = self.wish or ""
        self.windows: list[int] = request["windows"]  # begin, end, begin, …
        self._trace: Any = None
        self._claim = self._claim_path(root) if self.wish else None
        self.is_child: bool = request["is_child"]
        self._parts: list[str] = request["parts"]
        self._without = [
            table for part in _PARTS if part not in self._parts for table in _PARTS[part]
        ]
        self.configure(request)
        self.due_s = time.monotonic() + (self.period_s or 0)
        self.is_stale = True  # something has happened that is not in the file

    def _claim_path(self, root: str) -> tuple[str, int] | None:
        """Claim the path, or take another one if it is in use."""
        lock = name_lock(self.path, root)
        self._check_late(lock, self.path)
        if found := claim(lock, self.session.pid):
            self._check_late(self.path)
            return found
        self._check_late(lock, self.path)
        self.path = name_file(self.path, f"-pid_{self.session.pid}", before=False)
        return None

    def _check_late(self, *paths: str) -> None:
        """Refuse to write for a job that was killed before we were ready, if another job has had
        the path since this profile began: the other job's file is the newer one, and is to stay."""
        if not self.windows or is_running(self.session):
            return
        since_ns = self._wall(self.windows[0])
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_mtime_ns > since_ns:
                    raise Error("the job has ended, and another one has had the path since")

    def configure(self, request: dict[str, Any]) -> None:
        """Take over the settings that may change during a profile."""
        # A child's file is written when the child ends: there may be very many children.
        self.period_s: float | None = None if self.is_child else request["period_s"]

    def close(self) -> None:
        """Close the file for good."""
        if self._trace is not None:
            self._trace.close()
        if self._claim:
            os.unlink(self._claim[0])
            os.close(self._claim[1])

    def toggle(self, t_ns: int) -> None:
        """Open or close a window."""
        self.windows.append(t_ns)
        if len(self.windows) > 2 * _MOST_KEPT:
            self.windows = join(self.windows, _MOST_KEPT // 2)
        self.is_stale = True

    @property
    def is_open(self) -> bool:
        return len(self.windows) % 2 == 1

    def is_due(self) -> bool:
        """Tell whether the file should be refreshed now."""
        return self.period_s is not None and self.is_stale and time.monotonic() >= self.due_s

    def write(self, catch_up: Callable[[], object], *, finished: bool) -> None:
        """Bring the file up to date. `catch_up` takes over the windows that the job has opened and
        closed while rows were read."""
        if self.wish is None or not self.windows:
            return
        # The readers are not loaded before they are needed.
        from sonde.export.live_trace import LiveTrace

        if self._trace is None:
            start_ns = self._wall(self.windows[0])
            self._trace = LiveTrace(
                self.session, self.path, start_ns=start_ns, without=self._without
            )

        def list_windows() -> list[Window]:
            catch_up()
            self.is_stale = self.is_open
            return self._list_windows()

        write = self._trace.finish if finished else self._trace.refresh
        write(list_windows)
        # A large trace with a short period must not keep a processor busy.
        self.due_s = time.monotonic() + max(self.period_s or 0, self._trace.took_s * _REST)

    def _list_windows(self) -> list[Window]:
        """Return the windows on the wall clock. If there are very many, the nearest are joined:
        queries name them all, and events are not affected, because they know every pause."""
        from sonde.analysis.region_layout import FOREVER_NS
        from sonde.analysis.window import Window

        ends = join(self.windows, _MOST_ASKED)
        # Not now: each row is read once, and some will be written before it is.
        walls = [*(self._wall(t_ns) for t_ns in ends), *([FOREVER_NS] if self.is_open else [])]
        # What happened at `since_ns` belongs to the window before it.
        return [Window(walls[at] - 1, walls[at + 1]) for at in range(0, len(walls), 2)]

    def _wall(self, t_ns: int) -> int:
        return t_ns + self.session.wall_offset_ns

    def read_sums(self, since_ns: int) -> dict[str, object]:
        """Return what is summed up from rows, for those parts of the profile that are wanted."""
        from sonde.store.recording import Recording

        recording = Recording([self.session])
        return {
            "memory": self._read_memory(recording, since_ns) if "memory" in self._parts else {},
            "modules": self._read_modules(recording, since_ns) if "torch" in self._parts else [],
        }

    def _read_modules(self, recording: Recording, since_ns: int) -> list[list[object]]:
        """Return kind, name, count, total, minimum and maximum of modules and collectives."""
        from sonde.analysis.region_layout import FOREVER_NS

        ends = [*self.windows, *([FOREVER_NS] if self.is_open else [])]
        windows = [(max(ends[at], since_ns), ends[at + 1]) for at in range(0, len(ends), 2)]
        if not windows:
            return []
        shown = ", ".join(f"({begin_ns}, {end_ns})" for begin_ns, end_ns in windows)
        rows = recording.query(_MODULES.format(windows=shown)).to_pylist()
        return [list(row.values()) for row in rows]

    def _read_memory(self, recording: Recording, since_ns: int) -> dict[str, dict[str, float]]:
        """Return, by device, how often its memory was read in the windows, and its size in kB."""
        rows = recording.query(_MEMORY.format(pid=self.session.pid)).to_pylist()
        seen: dict[str, list[float]] = {}
        for row in rows:
            at = bisect_right(self.windows, row["t_ns"])
            if at % 2 == 1 and row["t_ns"] >= since_ns:
                seen.setdefault(row["device"], []).append(row["kilobytes"])
        return {
            device: {
                "Count": len(values),
                "Min": min(values),
                "Max": max(values),
                "Avg": sum(values) / len(values),
            }
            for device, values in seen.items()
        }


class ProfilerWriter:
    """Serves the requests of one job."""

    def __init__(self, line: int, root: str) -> None:
        self._line, self._root = line, root
        self._is_warm = False
        self._unread = b""
        self._requests: deque[dict[str, Any]] = deque()
        self._job: ProfileFile | None = None
        self._failure = "no profile was begun"  # why there is no profile
        self._idle_s = time.monotonic()
        self._checked_s = time.monotonic()
        self._is_over = False

    def run(self) -> None:
        """Serve until the line breaks or the job ends."""
        while self._requests or not self._is_over:
            if self._requests or select.select([self._line], [], [], self._find_wait())[0]:
                self._obey()
            elif self._job is not None and not self._job.is_child and not self._is_warm:
                # Load it now, before somebody waits for it.
                self._is_warm = bool(import_module("sonde.export.live_trace"))
            job = self._job
            if job is not None and job.is_due():
                self._write(job, finished=False)
            self._check_job()
        if self._job is not None:
            self._write(self._job, finished=True)
            self._job.close()

    def _find_wait(self) -> float:
        job = self._job
        if job is not None and not (self._is_warm or job.is_child):
            return 0.0
        if job is None or job.period_s is None or not job.is_stale:
            return CHECK_S
        return min(CHECK_S, max(0.0, job.due_s - time.monotonic()))

    def _check_job(self) -> None:
        """End when the job has ended, or after a while without a profile."""
        now_s = time.monotonic()
        if self._job is not None:
            self._idle_s = now_s
            if now_s - self._checked_s >= CHECK_S:
                self._checked_s = now_s
                # The process, not its recording, which may end before the profile does.
                self._is_over |= not is_running(self._job.session)
        elif now_s - self._idle_s > IDLE_S:
            self._is_over = True

    def _obey(self) -> None:
        if not self._requests:
            self._read()
        while self._requests:
            self._do(self._requests.popleft())

    def _read(self) -> None:
        try:
            got = os.read(self._line, 65536)
        except OSError:
            got = b""
        self._is_over = not got
        *lines, self._unread = (self._unread + got).split(b"\n")
        self._requests += [json.loads(line) for line in lines]

    def _catch_up(self) -> None:
        """Open and close the windows that the job has asked for by now."""
        while not self._is_over and select.select([self._line], [], [], 0)[0]:
            self._read()
        while self._requests and self._requests[0]["do"] == "toggle":
            self._do(self._requests.popleft())

    def _do(self, request: dict[str, Any]) -> None:
        what, job = request["do"], self._job
        answer: dict[str, object] = {}
        if what == "begin":
            self._begin(request)
        elif job is not None and what == "toggle":
            job.toggle(request["t_ns"])
        elif job is not None and what == "sums":
            answer = self._read_sums(job, request)
        elif job is not None and what == "dump":
            answer = self._write(job, finished=request["finished"])
            if request["finished"]:
                if "since_ns" in request:  # nobody can ask after this
                    answer |= self._read_sums(job, request)
                job.close()
                self._job = None
        elif what == "dump":
            answer = {"error": self._failure}
        if "ask" in request:
            self._answer({**answer, "ask": request["ask"]})

    def _begin(self, request: dict[str, Any]) -> None:
        job = self._job
        if job is not None and job.wish == request["path"]:
            job.configure(request)
            return
        try:
            self._job = ProfileFile(request, self._root)
        except (Error, OSError) as error:
            self._failure = str(error)
            self._log(request["session"], f"{request['path']} is not written: {error}")

    def _write(self, job: ProfileFile, *, finished: bool) -> dict[str, object]:
        return self._try(job, lambda: job.write(self._catch_up, finished=finished))

    def _read_sums(self, job: ProfileFile, request: dict[str, Any]) -> dict[str, object]:
        return self._try(job, lambda: job.read_sums(request["since_ns"]))

    def _try(
        self, job: ProfileFile, work: Callable[[], dict[str, object] | None]
    ) -> dict[str, object]:
        """Return the answer, or what went wrong; then the file is as it was."""
        try:
            return work() or {}
        except (Error, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._log(job.session.folder, f"{job.path}: {reason}")
            return {"error": reason}

    def _answer(self, answer: dict[str, object]) -> None:
        try:
            os.write(self._line, json.dumps(answer).encode() + b"\n")
        except OSError:
            self._is_over = True  # nobody is left to read it

    def _log(self, folder: str, line: str) -> None:
        files.log(folder, line)

    def explain(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Log a bug of ours: nobody sees this process's stderr, but the recording has a log."""
        import traceback

        if self._job is not None:
            self._log(
                self._job.session.folder, "".join(traceback.format_exception(kind, error, trace))
            )


def is_running(session: Session) -> bool:
    """Tell whether the process of this session has not ended."""
    return process.read_start_ticks(session.pid) == session.meta.start_ticks


def main() -> None:
    """Serve the job at the other end of standard input."""
    line = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)  # a stray print must not get onto the line
    os.set_blocking(line, True)
    writer = ProfilerWriter(line, sys.argv[1])
    sys.excepthook = writer.explain
    writer.run()
