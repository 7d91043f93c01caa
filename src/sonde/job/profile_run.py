"""Begin a run before some work and end it after, without ever getting in the way of the work."""

from __future__ import annotations

import os
import sys
import time
import warnings
from _thread import get_ident
from collections.abc import Sequence

from sonde import _core
from sonde import settings as config
from sonde.errors import ConfigError, Error, NotProfiled, RunActive
from sonde.job.recorder import recorder
from sonde.job.source_context import SourceContext
from sonde.session import Session, runs
from sonde.session.run import CANCELLED, FAILED, PREPARING, PROCESSING, RUNNING, STOPPING, Run
from sonde.session.run_result import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STOP_S = 0.5
_MOST_S = 10 * 365 * 86400.0
_CONFLICTS = ("run", "error", "wait")


class ProfileWarning(UserWarning):
    """Work that should have been profiled ran without a profile."""


class Unprofiled:
    """Stands in for a run where there is none: the work ran, and nothing was recorded."""

    id = None
    tags: Sequence[str] = ()

    def __init__(self, reason: str, state: str) -> None:
        self.reason, self.state = reason, state

    @property
    def run(self) -> Unprofiled:
        """The run, which is this object: it is its own ticket."""
        return self

    def find_state(self) -> tuple[str, str]:
        """Return the state and the reason."""
        return self.state, self.reason

    def wait_running(self, _timeout_s: float = 0.0) -> None:
        """Raise: the run never begins."""
        raise NotProfiled(self.reason)

    def stop(self, _timeout_s: float = 0.0) -> None:
        """Do nothing: there is no run."""

    def wait(self, _timeout_s: float = 0.0) -> str:
        """Return at once: the run is over."""
        return self.state

    def result(self, _timeout_s: float = 0.0) -> Result:
        """Raise: there is no result."""
        raise NotProfiled(self.reason)


class ProfileSettings:
    """The settings of a profile that a user may give."""

    def __init__(
        self,
        *,
        every: float | str = runs.EVERY_S,
        max_duration: float | str | None = runs.MAX_S,
        sources: Sequence[str] = (),
        tags: Sequence[str] | str = (),
        name: str | None = None,
        on_conflict: str = "run",
        stop_at_error: bool = False,
        start_timeout: float | str = 0.5,
        wait_timeout: float | str = 60.0,
        max_frames: int | None = None,
        environment: Sequence[str] | str = (),
        user: str | None = None,
        quiet: bool = False,
    ) -> None:
        if on_conflict not in _CONFLICTS:
            raise ConfigError(f"on_conflict={on_conflict!r} must be one of {', '.join(_CONFLICTS)}")
        self.on_conflict, self.stop_at_error = on_conflict, stop_at_error
        self._set_details(max_frames, environment, user)
        self.quiet = quiet  # problems go to the log only, because the program did not ask for this
        self.start_timeout, self.wait_timeout = _read_span(start_timeout), _read_span(wait_timeout)
        self.name = None if name is None else str(name)
        self.every_s = float(config.read_values({"stack.every": every})["stack.every"])
        self.max_s = None if max_duration is None else _read_span(max_duration)
        self.tags = (tags,) if isinstance(tags, str) else tuple(map(str, tags))
        self.sources = (sources,) if isinstance(sources, str) else tuple(sources)
        config.read_values(dict.fromkeys((f"source.{source}" for source in self.sources), True))

    def _set_details(
        self, max_frames: int | None, environment: Sequence[str] | str, user: str | None
    ) -> None:
        if max_frames is not None and not (isinstance(max_frames, int) and max_frames > 0):
            raise ConfigError(f"max_frames={max_frames!r} must be a number greater than 0")
        self.max_frames, self.user = max_frames, None if user is None else str(user)
        self.environment = (environment,) if isinstance(environment, str) else tuple(environment)

    def with_tags(self, tags: Sequence[str]) -> ProfileSettings:
        """Return the same settings with other tags."""
        other = ProfileSettings.__new__(ProfileSettings)
        other.__dict__.update(self.__dict__, tags=tuple(tags))
        return other

    def make_options(self, name: str | None) -> runs.RunOptions:
        return runs.RunOptions(
            every_s=self.every_s, max_s=self.max_s, sources=self.sources, tags=self.tags,
            name=self.name or name, max_frames=self.max_frames, environment=self.environment,
            user=self.user,
        )  # fmt: skip


def _read_span(span: float | str) -> float:
    try:
        seconds = config.parse_duration(str(span))
    except (KeyError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _MOST_S:
        raise ConfigError(f"{span!r} is not a time; write 30, 90s or 5min")
    return seconds


class Ticket:
    """The duty to end a run. An exception such as Ctrl-C or an alarm of the program may come
    between any two of our statements: if the ticket gets lost that way, the run ends."""

    def __init__(self, run: Run) -> None:
        self.run, self.is_used = run, False

    def __del__(self) -> None:
        if not self.is_used and self.run.session.pid == os.getpid():
            _core.run_stop(self.run.page, self.run.number)
            if recorder.parked:
                _core.control_on(self.run.page, False)


class _Here:
    """The run that code of this process has in progress."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.session: Session | None = None
        self.owner = (0, 0)  # thread and task that began the run
        self.pid = 0
        self.skipped: Unprofiled | None = None
        self.has_warned = False  # the user knows that work beside a run is not profiled
        self.failed = False  # the last start failed, so the next one gets a shorter timeout

    def get(self) -> Run | None:
        """Return the run, or None if it has ended."""
        run, writing = self.run, recorder.session
        if run is None or self.pid != os.getpid() or writing is None:
            return None
        is_here = run.session.folder == writing.folder
        return run if is_here and not _core.run_is_over(writing.page, run.number) else None


_here = _Here()


# ---- begin and end -------------------------------------------------------------------------------


def begin(settings: ProfileSettings, name: str | None) -> Ticket | Unprofiled:
    """Begin a run; raise only the errors that the settings ask for."""
    deadline, nap = time.monotonic() + settings.wait_timeout, 0.001
    while True:
        found = _try(settings, name, deadline)
        if found is not None:
            return found
        time.sleep(nap)
        nap = min(nap * 2, 0.05)


async def begin_async(settings: ProfileSettings, name: str | None) -> Ticket | Unprofiled:
    """Begin a run without blocking the event loop, if it is asyncio's."""
    asyncio = _find_asyncio()
    if asyncio is None:
        return begin(settings, name)
    deadline, nap = time.monotonic() + settings.wait_timeout, 0.001
    while True:
        found = _try(settings, name, deadline)
        if found is not None:
            return found
        await asyncio.sleep(nap)
        nap = min(nap * 2, 0.05)


def _try(
    settings: ProfileSettings, name: str | None, deadline: float
) -> Ticket | Unprofiled | None:
    """Begin a run; return None if another one is in progress and must be waited for."""
    active = _here.get()
    if active is not None and settings.on_conflict == "run":
        return _skip(settings, active.id)  # right away, because the function may be a hot one
    try:
        # A Ctrl-C comes before or after this, never between a run and the ticket that ends it.
        with recorder.lock:  # one thread at a time, so that the next one sees this run
            ticket: Ticket = _core.undisturbed(lambda: _claim(settings, name))
        name = ticket.run.about.name
        _log(f"{ticket.run.id} begins" + (f": {name}" if name else ""))
        return ticket
    except RunActive as error:
        if settings.on_conflict == "error":
            raise
        is_own = _here.get() is not None and _here.owner == identify_caller()
        if settings.on_conflict == "wait" and not is_own:
            if time.monotonic() < deadline:
                return None
            if settings.stop_at_error:
                raise
        return _skip(settings, error.run_id)
    except Error as error:
        _here.failed = True
        if settings.stop_at_error:
            raise
        _warn(f"not profiled: {error}", quiet=settings.quiet)
        return Unprofiled(str(error), FAILED)


def _claim(settings: ProfileSettings, name: str | None) -> Ticket:
    active = _here.get()
    if active is not None:
        raise RunActive(active.id, os.getpid())
    if not recorder.park():
        raise NotProfiled("this process cannot be recorded; see the line on stderr")
    assert recorder.session is not None
    if recorder.parked:
        recorder.set_on(True)
    if _here.session is None or _here.session.folder != recorder.session.folder:
        _here.session = Session(recorder.session.folder)
    control = _core.control_get(recorder.session.page)
    page = recorder.session.page if control["on"] and recorder.has_source("stack") else None
    run = runs.start(_here.session, settings.make_options(name), page)
    _here.run, _here.owner, _here.pid = run, identify_caller(), os.getpid()
    return Ticket(run)


def _skip(settings: ProfileSettings, run_id: str) -> Unprofiled:
    with recorder.lock:
        active = _here.get()
        if active is not None:
            active.skipped += 1
    why = f"not profiled: {run_id} is in progress"
    if _here.skipped is None or _here.skipped.reason != why:
        _here.skipped = Unprofiled(why, CANCELLED)
        quiet = settings.quiet or _here.has_warned
        _here.has_warned = _here.has_warned or not quiet
        _warn(f"{why}; other work runs without a profile meanwhile", quiet=quiet)
    return _here.skipped


def _find_asyncio() -> Any:
    """Return the module asyncio, if an event loop of its own runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio


def identify_caller() -> tuple[int, int]:
    """Return the ids of this thread and asyncio task."""
    asyncio = _find_asyncio()
    return get_ident(), 0 if asyncio is None else id(asyncio.current_task())


def _log(line: str) -> None:
    """Write a line to the program's log, if it uses `logging`; by default that shows no line of the
    level INFO."""
    logging: Any = sys.modules.get("logging")
    if hasattr(logging, "getLogger"):  # otherwise it is being imported right now
        # Its handlers are the program's: they may do and raise anything.
        SourceContext(recorder, "profile").guard(logging.getLogger("sonde.profile").info)(line)


def _warn(line: str, *, quiet: bool) -> None:
    """Warn in a way that cannot become an exception in the work."""
    if recorder.session is not None:
        recorder.session.log(line)
    if quiet:
        return
    try:
        warnings.warn(f"sonde: {line}", ProfileWarning, stacklevel=_find_caller())
    except ProfileWarning:
        pass  # the program turns warnings into errors; this one must not become one


def _find_caller() -> int:
    """Return how many frames up the program's own code is."""
    level, frame = 1, sys._getframe(1)
    ours = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        level, frame = level + 1, frame.f_back
    return level


def _choose_timeout(settings: ProfileSettings) -> float:
    return min(settings.start_timeout, 0.05) if _here.failed else settings.start_timeout


def _check_running(settings: ProfileSettings, run: Run) -> None:
    """Check, after waiting, that the run is running; give it up if not."""
    control = _core.control_get(run.page)
    if control["run_begun"] >= run.number and control["run_status"] >= 0:
        _here.failed = False
        if settings.sources:
            recorder.match_sources()
        return
    state, reason = run.find_state()
    _here.failed = state != RUNNING
    if state in (RUNNING, STOPPING, PROCESSING):
        return
    if state == PREPARING and not settings.stop_at_error:
        return  # the run begins when it can; the work does not wait for it
    why = reason or f"{run.id} was not running after {settings.start_timeout:g} s"
    run.cancel(why, FAILED)
    release(run)
    if settings.stop_at_error:
        raise NotProfiled(why)
    _warn(f"not profiled: {why}", quiet=settings.quiet)


def wait_running(settings: ProfileSettings, run: Run) -> None:
    """Wait until the run is running; give it up after the timeout, as the settings ask."""
    end_ns = _core.clock_ns() + round(_choose_timeout(settings) * 1e9)
    _core.run_wait(run.page, run.number, False, end_ns)
    _check_running(settings, run)


async def wait_running_async(settings: ProfileSettings, run: Run) -> None:
    """Wait until the run is running without blocking the event loop, if it is asyncio's."""
    asyncio = _find_asyncio()
    if asyncio is None:
        wait_running(settings, run)
        return
    end_ns = _core.clock_ns() + round(_choose_timeout(settings) * 1e9)
    # The run's own page, because other tasks may stop the recording meanwhile.
    while not _core.run_wait(run.page, run.number, False, 0):
        if _core.clock_ns() > end_ns:
            break
        await asyncio.sleep(0.0005)
    _check_running(settings, run)


def end(
    ticket: Ticket | Unprofiled, error: BaseException | None = None, *, quiet: bool = False
) -> None:
    """End a run; add a note to the error that ended the work, if any."""
    if isinstance(ticket, Unprofiled) or ticket.run.session.pid != os.getpid():
        return  # there is no run, or it belongs to the parent process
    _core.undisturbed(lambda: _end_now(ticket, quiet))
    log_end(ticket.run)
    # The end of a generator is not an error of the work.
    if error is not None and not isinstance(error, (GeneratorExit, StopIteration)):
        run_id = ticket.run.id
        _add_note(error, f"sonde: profiled as {run_id}; `sonde profile results {run_id}` shows it")


def log_end(run: Run) -> None:
    """Write to the program's log that a run has ended."""
    _log(f"{run.id} has ended; `sonde profile results {run.id}` shows it")


def _end_now(ticket: Ticket, quiet: bool) -> None:
    ticket.is_used = True
    try:
        ticket.run.stop(_STOP_S)
        if ticket.run.about.sources:
            recorder.match_sources()  # sources write their last rows before a pause
    except (Error, OSError) as error:
        _warn(f"{ticket.run.id}: {error}", quiet=quiet)
    finally:
        release(ticket.run)


def release(run: Run) -> None:
    """Forget a run that has ended; pause the recording if it exists only for runs."""
    if _here.run is run:
        _here.run = None
        if recorder.parked:
            recorder.set_on(False)


def _add_note(error: BaseException, line: str) -> None:
    try:
        if hasattr(error, "add_note"):
            error.add_note(line)
        else:
            error.__dict__.setdefault("__notes__", []).append(line)  # what 3.11 does
    except (AttributeError, TypeError):
        pass  # its notes are not a list; the error matters more than our note
