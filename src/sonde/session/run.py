"""One run: its states, its end and its result, from any process of the same user."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from sonde import _core
from sonde.errors import Damaged, Error, NoSession, NotAnswering, NotProfiled
from sonde.session import files, process, ring, stack_table
from sonde.session.folder import Session
from sonde.session.records import RunAbout, RunEnd, RunResult
from sonde.session.run_result import Result, cut_stacks

FOLDER, ABOUT, RESULT, BEGIN, END = "runs", "run.json", "result.json", "begin.nodes", "end.nodes"
STATES = PREPARING, RUNNING, STOPPING, PROCESSING, SUCCEEDED, FAILED, CANCELLED = (
    "PREPARING", "RUNNING", "STOPPING", "PROCESSING", "SUCCEEDED", "FAILED", "CANCELLED",
)  # fmt: skip
FINAL = (SUCCEEDED, FAILED, CANCELLED)
ANSWER_S, LOCK_S = 1.0, 0.25
_ALIVE_NS = 50_000_000  # between two checks that the process is still alive


@contextlib.contextmanager
def locked(target: Session, timeout_s: float = LOCK_S) -> Iterator[str]:
    """Lock the runs of a session for this process; the lock is freed even if the process dies."""
    folder = target.path(FOLDER)
    try:
        # With a timeout, because the user's work waits for this, and the process that holds the
        # lock may be stopped for good.
        with (
            files.OwnFolder(target.folder, FOLDER, make=True) as own,
            files.Locked(os.path.join(own, "lock"), timeout_s),
        ):
            yield own
    except OSError as error:
        raise NotProfiled(f"{folder}: {error.strerror}") from None


class Run:
    """One run, from any process."""

    def __init__(
        self,
        target: Session,
        run_id: str,
        about: RunAbout | None = None,
        page: _core.Map | None = None,
    ) -> None:
        self.session, self.id, self._page = target, run_id, page
        self.about = self._read_about() if about is None else about
        self.skipped = 0  # calls that were not profiled because of this run: see profile_run.py
        self.on_end: Callable[[Run], object] | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id} of process {self.session.pid}>"

    def path(self, name: str) -> str:
        """Return the path of a file of this run."""
        return self.session.path(FOLDER, self.id, name)

    def _read_about(self) -> RunAbout:
        try:
            return RunAbout.read(self.path(ABOUT))
        except FileNotFoundError:
            raise NoSession(f"there is no run {self.id}") from None

    @property
    def page(self) -> _core.Map:
        """The control page of its session."""
        if self._page is None:
            self._page = self.session.map_control(writable=True)
        return self._page

    @property
    def number(self) -> int:
        """The number of the run within its process, as the control page counts."""
        return self.about.number

    @property
    def tags(self) -> list[str]:
        """The tags of the run."""
        return self.about.tags

    @property
    def state(self) -> str:
        """The current state of the run."""
        return self.find_state()[0]

    def find_state(self) -> tuple[str, str | None]:
        """Return the current state of the run, and the reason if something went wrong."""
        self.about = self._read_about()
        if self.about.final is not None:
            return self.about.final.state, self.about.final.reason
        if self.about.past:
            return PROCESSING, None
        control, is_alive = self.session.read_control(), self.session.is_alive()
        if control["run_begun"] < self.number or self._is_stale(control):
            return self._find_first_state(control, is_alive)
        if control["run_ended"] < self.number:
            is_due = control["run_end_ns"] <= _core.clock_ns()
            return PROCESSING if not is_alive else STOPPING if is_due else RUNNING, None
        return self._find_last_state(control)

    def _find_last_state(self, control: dict[str, int]) -> tuple[str, str | None]:
        if control["run_asked"] == self.number and control["run_status"] < 0:
            return (
                FAILED,
                f"the stack sums could not be written: {os.strerror(-control['run_status'])}",
            )
        if not os.path.exists(self.path(END)):
            return FAILED, "the stack sums at its end could not be written"
        return PROCESSING, None

    def _find_first_state(self, control: dict[str, int], is_alive: bool) -> tuple[str, str | None]:
        if self._is_stale(control):
            return FAILED, "the process that started it died"
        return (PREPARING, None) if is_alive else (FAILED, "the process ended before the run began")

    def _is_stale(self, control: dict[str, int]) -> bool:
        """Return whether its starter died before requesting it; then another run has its number."""
        if control["run_asked"] < self.number:
            return not self._has_starter()
        return control["run_asked"] == self.number and not self._is_newest()

    def _is_newest(self) -> bool:
        page = self.session.map_control() if self._page is None else self._page
        return _core.run_name(page) == self.id

    def _has_starter(self) -> bool:
        return process.read_start_ticks(self.about.starter_pid) == self.about.starter_ticks

    def list_states(self) -> list[tuple[str, int]]:
        """Return the states so far, each with its start on the monotonic clock."""
        begin_ns, end_ns = self.read_times()
        state, about = self.find_state()[0], self.about
        found = [(PREPARING, about.asked_ns)]
        if begin_ns:
            found.append((RUNNING, begin_ns))
        if about.stop_ns is not None:
            found.append((STOPPING, about.stop_ns))
        if end_ns and state != CANCELLED:
            found.append((PROCESSING, end_ns))
        if about.final is not None:
            found.append((state, about.final.t_ns))
        return found

    def read_times(self) -> tuple[int, int]:
        """Return when the run began and ended, on the monotonic clock; 0 if it has not yet."""
        found = [0, 0]
        with contextlib.suppress(FileNotFoundError, Error):
            result = RunResult.read(self.path(RESULT))
            return result.begin_ns, result.end_ns
        for at, name in enumerate((BEGIN, END)):
            with contextlib.suppress(FileNotFoundError, Error, _core.Damaged):
                found[at] = _core.nodes_read(ring.map_file(self.path(name)))[4]
        return found[0], found[1]

    # ---- control -------------------------------------------------------------------------------

    def wait_running(self, timeout_s: float = ANSWER_S) -> None:
        """Wait until the run has begun; raise RunNotBegun if it still may, NotProfiled if not."""
        self._wait(timeout_s, ended=False)
        state, reason = self.find_state()
        if state in (FAILED, CANCELLED):
            raise NotProfiled(f"{self.id}: {reason}")
        if state == PREPARING:
            raise RunNotBegun(f"{self.id} is not running after {timeout_s:g} s")

    def stop(self, timeout_s: float = ANSWER_S) -> None:
        """End the run and wait until its stack sums are written; the work continues."""
        now_ns = _core.clock_ns()
        if _core.control_get(self.page)["run_ended"] >= self.number:
            if self.skipped:
                self._note(skipped=self.skipped)
            if self.on_end is not None:
                self.on_end(self)
            return
        if not self._is_newest():
            return  # it never began, and another run has its number
        _core.run_stop(self.page, self.number)  # first, because what follows is not the user's work
        if self.about.stop_ns is None:
            self._note(stop_ns=now_ns, skipped=self.skipped)
        self._wait(timeout_s, ended=True)
        if self.on_end is not None:
            self.on_end(self)

    def cancel(self, reason: str = "cancelled", state: str = CANCELLED) -> None:
        """End the run and discard what it recorded."""
        with contextlib.suppress(Error, OSError):
            if self._is_newest():
                _core.run_stop(self.page, self.number)
        self._finish(state, reason)
        self._drop_sums()

    def wait(self, timeout_s: float) -> str:
        """Wait until the run has ended and has its result; return its last state."""
        deadline = time.monotonic() + timeout_s
        while self.state not in (PROCESSING, *FINAL):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise NotAnswering(f"{self.id} is {self.state} after {timeout_s:g} s")
            self._wait(min(left_s, 0.5), ended=True)
        self.process()
        return self.state

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the stack sums at its end are written, or until the timeout."""
        self._wait(timeout_s, ended=True)

    def _wait(self, timeout_s: float, *, ended: bool) -> None:
        end_ns = _core.clock_ns() + round(timeout_s * 1e9)
        check_ns = 0
        while not _core.run_wait(self.page, self.number, ended, check_ns):
            if _core.clock_ns() >= end_ns or not self.session.is_alive():
                return
            check_ns = min(end_ns, _core.clock_ns() + _ALIVE_NS)

    def _note(self, **changes: object) -> None:
        with locked(self.session):
            self._write_about(**changes)

    def _write_about(self, **changes: object) -> None:
        self.about = self._read_about().replace(**changes)
        self._write(ABOUT, self.about)

    def _write(self, name: str, record: RunAbout | RunResult) -> None:
        with self._own() as folder:
            record.write(os.path.join(folder, name))

    def _own(self) -> files.OwnFolder:
        return files.OwnFolder(self.session.folder, FOLDER, self.id)

    def _finish(self, state: str, reason: str | None) -> None:
        with contextlib.suppress(OSError, Error):  # a full disk costs the state and nothing else
            self._note(final=_end(state, reason), skipped=self.skipped)

    # ---- the result ----------------------------------------------------------------------------

    def result(self, timeout_s: float = 10.0) -> Result:
        """Wait for the end of the run and return its result; raise NotProfiled if it failed."""
        self.wait(timeout_s)
        state, reason = self.find_state()
        if state != SUCCEEDED:
            raise NotProfiled(f"{self.id} has no result: {reason or state.lower()}")
        found = RunResult.read(self.path(RESULT))
        return Result(found, self.path(""), self.about.exports, self._note_export)

    def _note_export(self, path: str) -> None:
        with contextlib.suppress(OSError, Error):  # a full disk costs the note, not the file
            self._note(exports=[*self.about.exports, path])

    def process(self) -> None:
        """Compute the result of a run that has ended, unless that is done."""
        state, reason = self.find_state()
        if state == FAILED and self.about.final is None:
            self._finish(FAILED, reason)
        if state != PROCESSING:
            return
        # Without the lock: this may take a second, and somebody's work may be waiting to begin.
        try:
            found = self._compute()
            self._write(RESULT, found)
            final = _end(SUCCEEDED, found.reason)
        except FileNotFoundError:
            if self.state == SUCCEEDED:
                return  # another process was faster and has removed the stack sums
            final = _end(FAILED, "its stack sums are missing")
        except (OSError, Error) as error:
            final = _end(FAILED, error.strerror if isinstance(error, OSError) else str(error))
        with locked(self.session, ANSWER_S):
            if self.find_state()[0] == PROCESSING:
                self._write_about(final=final)
        self._drop_sums()

    def _compute(self) -> RunResult:
        reason = None
        if self.about.whole:
            begin, begin_ns = stack_table.Nodes.make_empty(), self.session.meta.monotonic_ns
        else:
            begin = stack_table.read_sums(self.session, self.path(BEGIN))
            begin_ns = begin.t_ns
        try:
            end = stack_table.read_sums(self.session, self.path(END))
        except FileNotFoundError:
            if self.session.is_alive():
                raise
            end = stack_table.read_nodes(self.session)  # the process ended first
            end.t_ns = stack_table.find_last_ns(self.session) or begin_ns
        if begin.damaged or end.damaged:
            raise Damaged("its stack sums are damaged")
        if self.about.stop_ns is None:
            reason = self._explain_end(end.t_ns)
        about, session = self.about, self.session
        frames, nodes, ours = stack_table.subtract(begin, end)
        found = RunResult(
            id=about.id, session=about.session, name=about.name, tags=about.tags,
            skipped=max(self.skipped, about.skipped), host=session.host, pid=session.pid,
            rank=session.rank, begin_ns=begin_ns, end_ns=end.t_ns, reason=reason,
            wall_offset_ns=session.wall_offset_ns, frames=frames, nodes=nodes, ours=ours,
            user=about.user, environment=about.environment,
        )  # fmt: skip
        return found if about.max_frames is None else cut_stacks(found, about.max_frames)

    def _explain_end(self, end_ns: int) -> str:
        """Return why a run ended that nobody stopped."""
        max_s = self.about.max_s
        if max_s is not None and end_ns >= self.about.asked_ns + max_s * 1e9:
            return f"cut after {max_s:g} s, as requested"
        return "the process or its recording ended"

    def _drop_sums(self) -> None:
        with contextlib.suppress(OSError, Error), self._own() as folder:
            for name in (BEGIN, END):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))


def _end(state: str, reason: str | None) -> RunEnd:
    return RunEnd(state=state, reason=reason, t_ns=_core.clock_ns())


class RunNotBegun(NotProfiled, TimeoutError):
    """A run did not begin in time, but still may."""
