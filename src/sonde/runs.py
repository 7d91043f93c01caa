"""Runs: bounded profiles of a process, each with an id, states and a result.

A run is a folder in its session: what was asked for, and two marks of the stack table's sums, made
by the job's native thread at its begin and its end. So it needs no thread of Python, no server and
no file that somebody must hold: any process of the same user can start one, end it and read it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence

from sonde import _core, ring, session, stacks
from sonde.errors import Damaged, Error, NoSession, NotAnswering, NotProfiled, RunActive
from sonde.result import Result
from sonde.session import Session

FOLDER, ABOUT, RESULT, BEGIN, END = "runs", "run.json", "result.json", "begin.nodes", "end.nodes"
STATES = PREPARING, RUNNING, STOPPING, PROCESSING, SUCCEEDED, FAILED, CANCELLED = (
    "PREPARING", "RUNNING", "STOPPING", "PROCESSING", "SUCCEEDED", "FAILED", "CANCELLED",
)  # fmt: skip
FINAL = (SUCCEEDED, FAILED, CANCELLED)
EVERY_S, MAX_S, ANSWER_S = 0.001, 600.0, 1.0
_FOREVER_NS = 2**62


class Options:
    """What a run should be like."""

    __slots__ = ("by", "every_s", "max_s", "name", "sources", "tags")

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        max_s: float | None = MAX_S,
        sources: Sequence[str] = (),
        tags: Sequence[str] = (),
        name: str | None = None,
        by: str = "code",
    ) -> None:
        self.every_s, self.max_s, self.name, self.by = every_s, max_s, name, by
        self.sources, self.tags = tuple(sources), tuple(tags)


def start(target: Session, options: Options, *, is_whole: bool = False) -> Run:
    """Have a run begin; it is PREPARING when this returns. RunActive if another one is under way.

    `is_whole`: it begins where the recording did, instead of now."""
    page = _open_page(target)
    with locked(target) as folder:
        active = find_active(target)
        if active is not None:
            raise RunActive(active.id, target.pid)
        now_ns = _core.clock_ns()
        end_ns = _FOREVER_NS if options.max_s is None else now_ns + round(options.max_s * 1e9)
        run_id = _make_id(target.pid)
        os.mkdir(os.path.join(folder, run_id), 0o700)
        every_ns = round(options.every_s * 1e9)
        about: dict[str, object] = {
            "id": run_id, "session": target.id, "number": _core.control_get(page)["run_asked"] + 1,
            "name": options.name, "by": options.by, "tags": list(options.tags),
            "sources": list(options.sources), "every_ns": every_ns,
            "max_s": options.max_s, "whole": is_whole, "asked_ns": now_ns, "stop_ns": None,
            "skipped": 0, "starter": [os.getpid(), session.read_start_ticks(os.getpid())],
            "final": None,
        }  # fmt: skip
        session.write_checked(os.path.join(folder, run_id, ABOUT), about)
        _core.run_start(page, run_id, every_ns, end_ns, bool(options.sources))
    return Run(target, run_id)


def _make_id(pid: int) -> str:
    wall_ns = time.time_ns()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(wall_ns // 10**9))
    return f"run-{stamp}.{wall_ns % 10**9 // 1000:06d}-{pid}"


def _open_page(target: Session) -> _core.Map:
    if not target.is_alive():
        raise NotProfiled(f"the recording of process {target.pid} is over; nothing can be profiled")
    control = target.read_control()
    if not control["on"]:
        raise NotProfiled(f"process {target.pid} is paused; `sonde resume {target.pid}` first")
    if not target.read_config().get("source.stack", True):
        raise NotProfiled(
            f"process {target.pid} samples no stacks; `sonde config {target.pid} source.stack=on`"
        )
    return target.map_control(writable=True)


@contextlib.contextmanager
def locked(target: Session) -> Iterator[str]:
    """Alone with the runs of a session, for a moment; free again whatever happens to us."""
    folder = target.path(FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotProfiled(f"{folder}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield folder
    except OSError as error:
        raise NotProfiled(f"{folder}: {error.strerror}") from None
    finally:
        os.close(fd)


def find_active(target: Session) -> Run | None:
    """The run that is under way in a process, if any."""
    control = target.read_control()
    if control["run_asked"] == control["run_ended"]:
        return None
    try:
        run = Run(target, _core.run_name(target.map_control()))
    except (Error, OSError):
        return None
    return None if run.find_state()[0] in (PROCESSING, *FINAL) else run


def list_runs(target: Session) -> list[Run]:
    """The runs of a session, the oldest first; damaged ones are passed over."""
    found = []
    for name in list_names(target):
        with contextlib.suppress(Damaged, NoSession):
            found.append(Run(target, name))
    return found


def list_names(target: Session) -> list[str]:
    """The ids of a session's runs, the oldest first, without opening any."""
    try:
        return sorted(filter(is_id, os.listdir(target.path(FOLDER))))
    except FileNotFoundError:
        return []


def is_id(word: str) -> bool:
    """Is this how a run is called?"""
    return word.startswith("run-") and os.sep not in word


def find_run(run_id: str, root: str) -> Run:
    """A run by its id, in whichever session it is."""
    for target in session.list_sessions(root):
        if is_id(run_id) and os.path.isdir(target.path(FOLDER, run_id)):
            return Run(target, run_id)
    raise NoSession(f"there is no run {run_id}; `sonde profile list` shows them")


class Run:
    """One run, seen from any process."""

    def __init__(self, target: Session, run_id: str) -> None:
        self.session, self.id = target, run_id
        self.about = self._read_about()
        self.skipped = 0  # calls that were not profiled because of this run; see profiling.py

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.state}>"

    def path(self, name: str) -> str:
        """A file of this run."""
        return self.session.path(FOLDER, self.id, name)

    def _read_about(self) -> dict[str, object]:
        try:
            about = session.read_checked(self.path(ABOUT))
        except FileNotFoundError:
            raise NoSession(f"there is no run {self.id}") from None
        except OSError as error:
            raise Damaged(f"{self.path(ABOUT)}: {error.strerror}") from None
        if not isinstance(about.get("number"), int):
            raise Damaged(f"{self.path(ABOUT)} is damaged")
        return about

    @property
    def number(self) -> int:
        """Which run of its process it is, as the control page counts."""
        return int(str(self.about["number"]))

    @property
    def tags(self) -> list[str]:
        """What it was tagged with."""
        tags = self.about["tags"]
        assert isinstance(tags, list)
        return tags

    @property
    def state(self) -> str:
        """Where it is now."""
        return self.find_state()[0]

    def find_state(self) -> tuple[str, str | None]:
        """Where it is now, and why if it did not go well."""
        self.about = self._read_about()
        final = self.about["final"]
        if isinstance(final, list):
            return str(final[0]), None if final[1] is None else str(final[1])
        control, is_alive = self.session.read_control(), self.session.is_alive()
        if control["run_begun"] < self.number:
            return self._find_first_state(control, is_alive)
        if control["run_ended"] < self.number:
            if not is_alive:
                return PROCESSING, None
            is_due = control["run_end_ns"] <= _core.clock_ns()
            return STOPPING if is_due else RUNNING, None
        if control["run_asked"] == self.number and control["run_status"] < 0:
            return FAILED, f"no mark could be written: {os.strerror(-control['run_status'])}"
        return PROCESSING, None

    def _find_first_state(self, control: dict[str, int], is_alive: bool) -> tuple[str, str | None]:
        if not is_alive:
            return FAILED, "the process ended before it began"
        if control["run_asked"] < self.number and not self._has_starter():
            return FAILED, "whoever started it died"
        return PREPARING, None

    def _has_starter(self) -> bool:
        starter = self.about["starter"]
        assert isinstance(starter, list)
        return session.read_start_ticks(int(starter[0])) == int(starter[1])

    def list_states(self) -> list[tuple[str, int]]:
        """The states it has been in so far and since when, on the monotonic clock."""
        found = [(PREPARING, int(str(self.about["asked_ns"])))]
        begin_ns, end_ns = self.read_times()
        stop_ns, state = self.about["stop_ns"], self.find_state()[0]
        final = self.about["final"]
        if begin_ns:
            found.append((RUNNING, begin_ns))
        if isinstance(stop_ns, int):
            found.append((STOPPING, stop_ns))
        if end_ns and state not in (CANCELLED,):
            found.append((PROCESSING, end_ns))
        if isinstance(final, list):
            found.append((state, int(final[2])))
        return found

    def read_times(self) -> tuple[int, int]:
        """When it began and ended, on the monotonic clock; 0: not yet."""
        found = [0, 0]
        with contextlib.suppress(FileNotFoundError, Error):
            result = session.read_checked(self.path(RESULT))
            return int(str(result["begin_ns"])), int(str(result["end_ns"]))
        for at, name in enumerate((BEGIN, END)):
            with contextlib.suppress(FileNotFoundError, Error, _core.Damaged):
                found[at] = _core.nodes_read(ring.map_file(self.path(name)))[4]
        return found[0], found[1]

    # ---- steering ------------------------------------------------------------------------------

    def wait_running(self, timeout_s: float = ANSWER_S) -> None:
        """Wait until it is really running; TimeoutError, or NotProfiled if it will not."""
        self._wait(timeout_s, ended=False)
        state, reason = self.find_state()
        if state in (FAILED, CANCELLED):
            raise NotProfiled(f"{self.id}: {reason}")
        if state == PREPARING:
            raise NotRunning(f"{self.id} is not running after {timeout_s:g} s")

    def stop(self, timeout_s: float = ANSWER_S) -> None:
        """End it, and wait until its end is written; the work goes on."""
        now_ns = _core.clock_ns()
        page = self.session.map_control(writable=True)
        if _core.control_get(page)["run_ended"] >= self.number:
            return
        _core.run_stop(page, self.number)  # first of all: what comes now is not the work
        if self.about["stop_ns"] is None:
            self._note(stop_ns=now_ns, skipped=self.skipped)
        self._wait(timeout_s, ended=True)

    def cancel(self, reason: str = "cancelled", state: str = CANCELLED) -> None:
        """End it and keep nothing of it."""
        with contextlib.suppress(Error, OSError):
            _core.run_stop(self.session.map_control(writable=True), self.number)
        self._finish(state, reason)
        self._drop_marks()

    def wait(self, timeout_s: float) -> str:
        """Wait until it has ended and its result is there; its last state."""
        deadline = time.monotonic() + timeout_s
        while self.state not in (PROCESSING, *FINAL):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise NotAnswering(f"{self.id} is {self.state} after {timeout_s:g} s")
            self._wait(min(left_s, 0.5), ended=True)
        self.process()
        return self.state

    def _wait(self, timeout_s: float, *, ended: bool) -> None:
        if not self.session.is_alive():
            return
        end_ns = _core.clock_ns() + round(timeout_s * 1e9)
        page = self.session.map_control(writable=True)
        _core.run_wait(page, self.number, ended, end_ns)

    def _note(self, **changes: object) -> None:
        with locked(self.session):
            self._write_about(**changes)

    def _write_about(self, **changes: object) -> None:
        self.about = {**self._read_about(), **changes}
        session.write_checked(self.path(ABOUT), self.about)

    def _finish(self, state: str, reason: str | None) -> None:
        with contextlib.suppress(OSError, Error):  # a full disk; it is what it is all the same
            self._note(final=[state, reason, _core.clock_ns()], skipped=self.skipped)

    # ---- the result ----------------------------------------------------------------------------

    def result(self, timeout_s: float = 10.0) -> Result:
        """What it found; waits for its end. NotProfiled if it failed."""
        self.wait(timeout_s)
        state, reason = self.find_state()
        if state != SUCCEEDED:
            raise NotProfiled(f"{self.id} has no result: {reason or state.lower()}")
        return Result(session.read_checked(self.path(RESULT)))

    def process(self) -> None:
        """Work out the result of a run that has ended; does nothing where it is done."""
        state, reason = self.find_state()
        if state == FAILED and self.about["final"] is None:
            self._finish(FAILED, reason)
        if state != PROCESSING:
            return
        with locked(self.session):
            if self.find_state()[0] != PROCESSING:
                return  # somebody else was faster
            try:
                values = self._work_out()
                session.write_checked(self.path(RESULT), values)
                final = [SUCCEEDED, values["reason"], _core.clock_ns()]
            except (OSError, Error) as error:
                said = error.strerror if isinstance(error, OSError) else str(error)
                final = [FAILED, said, _core.clock_ns()]
            self._write_about(final=final)
            self._drop_marks()

    def _work_out(self) -> dict[str, object]:
        reason = None
        begin = stacks.read_mark(self.session, self.path(BEGIN))
        try:
            end = stacks.read_mark(self.session, self.path(END))
        except FileNotFoundError:
            end = stacks.read_nodes(self.session)  # the process ended first
            end.t_ns = stacks.find_last_ns(self.session) or begin.t_ns
        begin_ns = begin.t_ns
        if self.about["whole"]:
            clock = self.session.meta["clock"]
            assert isinstance(clock, dict)
            begin, begin_ns = stacks.Nodes.make_empty(), int(clock["monotonic_ns"])
        if self.about["stop_ns"] is None:
            reason = self._explain_end(end.t_ns)
        keys = ("id", "session", "name", "tags", "skipped")
        return {
            **{key: self.about[key] for key in keys},
            "skipped": max(self.skipped, int(str(self.about["skipped"]))),
            "host": self.session.host, "pid": self.session.pid, "rank": self.session.rank,
            "begin_ns": begin_ns, "end_ns": end.t_ns, "reason": reason,
            "wall_offset_ns": self.session.wall_offset_ns,
            **stacks.subtract(begin, end),
        }  # fmt: skip

    def _explain_end(self, end_ns: int) -> str:
        """Why it ended, if nobody stopped it."""
        asked_ns, max_s = int(str(self.about["asked_ns"])), self.about["max_s"]
        if isinstance(max_s, (int, float)) and end_ns >= asked_ns + max_s * 1e9:
            return f"cut after {max_s:g} s, as asked"
        return "the process or its recording ended"

    def _drop_marks(self) -> None:
        for name in (BEGIN, END):
            with contextlib.suppress(OSError):
                os.unlink(self.path(name))


class NotRunning(NotProfiled, TimeoutError):
    """A run that did not begin in time; it still may."""


def process_all(target: Session) -> None:
    """Work out every run of a session that has ended: before its texts go, say."""
    for run in list_runs(target):
        run.process()
