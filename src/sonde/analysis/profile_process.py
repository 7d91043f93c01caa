"""Profile a process for a while: attach if need be, run, wait, detach, return the result."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sonde import environ, settings
from sonde.errors import Error, NoSession, NotProfiled
from sonde.session import Session, runs, steering
from sonde.session.run import FAILED, PREPARING, RUNNING, SUCCEEDED, Run
from sonde.session.run_result import Result, merge
from sonde.session.target import find_sessions

DURATION_S, TIMEOUT_S = 30.0, 60.0
_SHOW_S = 0.2


class ProfileListener:
    """Hears how a profile goes. This one ignores it; a command draws it."""

    def show(self, run: Run, passed_s: float) -> None:
        """Show that a run has been going on for so long."""

    def stop_early(self, run: Run) -> None:
        """Show that a run was interrupted; its result is what was seen so far."""

    def warn(self, problem: Error) -> None:
        """Show a problem that does not affect the result."""


class ProfileOptions(NamedTuple):
    """How to profile: as `sonde profile` has it. Times are seconds."""

    every: float | str = "1ms"  # between two samples
    sources: Sequence[str] = ()  # to be recorded as well during the run
    tags: Sequence[str] = ()
    name: str | None = None

    def make_run_options(self, max_s: float | None) -> runs.RunOptions:
        """Check the options and return them for a run of at most `max_s`."""
        every_s = float(settings.read_values({"stack.every": self.every})["stack.every"])
        settings.read_values(dict.fromkeys((f"source.{name}" for name in self.sources), True))
        return runs.RunOptions(
            every_s=every_s, max_s=max_s, sources=self.sources, tags=self.tags, name=self.name,
            by="tool",
        )  # fmt: skip


class CommandProfile(NamedTuple):
    """What became of a command that was profiled."""

    code: int  # its exit code, as a shell has it
    result: Result | None
    problem: Error | None  # why there is no result


def profile_process(
    target: int | str,
    duration: float = DURATION_S,
    *,
    timeout: float = TIMEOUT_S,
    options: ProfileOptions | None = None,
    listener: ProfileListener | None = None,
) -> Result:
    """Profile a running process for `duration` seconds and return the result.

    A process that is not being recorded is attached to, and detached from at the end. Ctrl-C ends
    the run early: the result is what was seen so far."""
    listener = listener or ProfileListener()
    # Wrong options are reported before anything is touched.
    run_options = (options or ProfileOptions()).make_run_options(duration)
    session, is_attached = _find_or_attach(str(target), timeout)
    try:
        run = start_run(session, run_options, timeout)
        _watch(run, session.is_alive, listener)
        return run.result()
    finally:
        if is_attached:
            _detach(session, timeout, listener)


def start_run(session: Session, options: runs.RunOptions, timeout: float = TIMEOUT_S) -> Run:
    """Begin a run and wait until it is really running."""
    run = runs.start(session, options)
    try:
        run.wait_running(timeout)
    except NotProfiled as error:
        run.cancel(str(error), FAILED)
        raise
    return run


def find_live_session(target: str) -> Session:
    """Return the recording of the one live process that a target names."""
    sessions = steering.select_alive(find_sessions(target, environ.find_root()))
    if len(sessions) > 1:
        raise Error(f"{target} is {len(sessions)} processes; profile one of them")
    return sessions[0]


def _find_or_attach(target: str, timeout_s: float) -> tuple[Session, bool]:
    """Return the recording of a process, and whether this call began it."""
    try:
        session = find_live_session(target)
        if session.is_alive() or not target.isdecimal():
            return session, False
    except NoSession:
        if not target.isdecimal():
            raise
    from sonde.attach.visit import attach  # only now: it loads a debugger's half of the core

    return attach(int(target), {}, timeout_s), True


def _detach(session: Session, timeout_s: float, listener: ProfileListener) -> None:
    from sonde.attach.visit import detach

    try:
        if session.is_alive():
            detach(session, timeout_s)
    except Error as error:
        listener.warn(error)


def _watch(run: Run, is_going_on: Callable[[], bool], listener: ProfileListener) -> None:
    begin_s = time.monotonic()
    try:
        while is_going_on() and run.state in (RUNNING, PREPARING):
            listener.show(run, time.monotonic() - begin_s)
            run.wait_end(_SHOW_S)
    except KeyboardInterrupt:
        listener.stop_early(run)
    run.stop()


# ---- a new process -------------------------------------------------------------------------------


def profile_command(
    command: Sequence[str],
    duration: float | None = None,
    *,
    options: ProfileOptions | None = None,
    listener: ProfileListener | None = None,
) -> CommandProfile:
    """Run a command and profile it from its very first moment: to its end, or for `duration`."""
    listener, options = listener or ProfileListener(), options or ProfileOptions()
    # Wrong options are reported before the command runs.
    run_options = options.make_run_options(duration)
    env = environ.make_child_environment(
        SONDE="1", SONDE_DIR=environ.find_root(), SONDE_STACK_EVERY=str(options.every)
    )
    try:
        process = subprocess.Popen(command, env=env)
    except OSError as error:
        raise Error(f"{command[0]}: {error.strerror}") from None
    result, problem = None, None
    try:
        run = _start_whole(process, run_options)
        _watch(run, lambda: process.poll() is None, listener)
        result = run.result()
    except Error as error:
        problem = error
    except KeyboardInterrupt:
        pass  # the command has got the same signal
    return CommandProfile(_wait_for(process), result, problem)


def _start_whole(process: subprocess.Popen[bytes], options: runs.RunOptions) -> Run:
    """Begin a run that counts from the start of a new process."""
    nap, root = 0.002, environ.find_root()
    while True:
        is_over, session = process.poll() is not None, None
        try:
            session = find_sessions(str(process.pid), root)[0]
            run = runs.start(session, options, is_whole=True)
            run.wait_running()
            return run
        except NoSession:
            pass
        except NotProfiled:
            if not is_over and session is not None and session.is_alive():
                raise
        if is_over and session is not None:
            return runs.start_past(session, options)  # it was quick, but all of it was recorded
        if is_over:
            raise NotProfiled(
                "no Python process was recorded: the command is not Python and started none"
            )
        time.sleep(nap)
        nap = min(nap * 1.5, 0.1)


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:
            continue  # the command decides itself when it ends


# ---- many runs -----------------------------------------------------------------------------------


def merge_tagged(tags: Sequence[str]) -> Result:
    """Return the sum of the results of all runs that have all of these tags."""
    found = []
    for session in find_sessions("all", environ.find_root()):
        for run in runs.list_runs(session):
            run.process()
            if set(tags) <= set(run.tags) and run.state == SUCCEEDED:
                found.append(run.result())
    if not found:
        raise NoSession(f"no run with the tag {', '.join(tags)} has a result")
    return merge(found, "+".join(tags))
