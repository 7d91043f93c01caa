"""Start recording before the program starts: the .pth hook calls this.

A program that a recorded program has started waits with that, since most of them end soon, and a
session costs more than a program such as `python -c pass` does. There the hook loads only the
library `_delay`, which calls this module when the recording is to begin."""

import _signal  # type: ignore[import-not-found]  # the enums of `signal` are slow to create
import os
import sys

# The signals that may ask for a snapshot.
_HELD = (_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGHUP)
# Helper processes of Python's own, which are not part of the program.
_HELPERS = ("from multiprocessing.resource_tracker", "from multiprocessing.semaphore_tracker")
_was_called = False


def start() -> None:
    """Record this process, or profile it, if the environment asks for it. Only the first call does:
    Python runs the hooks of a virtual environment twice."""
    global _was_called
    if _was_called:
        return
    _was_called = True
    # First of all: until its handler is installed, a signal that asks for a snapshot would end the
    # program. Held back, it is handled a moment later.
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _HELD)
    try:
        _start()
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before - _take_held())


def _take_held() -> set[int]:
    """Return the signal that `sonde run` held back for this process, see cli/run.py; empty if
    there is none. The program does not find the variable."""
    pid, _, number = os.environ.pop("SONDE_HELD", "").partition(" ")
    return {int(number)} if pid == str(os.getpid()) and number.isdecimal() else set()


def _start() -> None:
    if _is_helper(getattr(sys, "orig_argv", [])):
        return
    from sonde import environ

    if environ.is_asked_for():
        from sonde.job.recorder import recorder

        recorder.start({})
    profiled = environ.read_profiler()
    if profiled is not None:
        from sonde.job.mxnet.state import autostart

        autostart(profiled)


def _is_helper(argv: list[str]) -> bool:
    if any(word.startswith(_HELPERS) for word in argv[1:4]):
        return True
    # This is the tool itself: `sonde query …` under SONDE=1 records nothing.
    program = argv[1] if len(argv) > 1 else ""
    return program.endswith("/sonde") or argv[1:3] == ["-m", "sonde"]


# ---- what _delay calls -------------------------------------------------------------------------


def begin(since_ns: int, tid: int) -> bool:
    """Begin the recording of a program that has waited since then. `tid` is the thread that calls
    this, if it is ours. Return False if that has to be tried again."""
    if _is_helper(getattr(sys, "orig_argv", [])):
        return True
    try:
        from sonde.job.recorder import recorder
    except ImportError:
        # This call interrupts the import of that module: by the program, or by `sonde attach`.
        return False
    from sonde import _core

    _core.later_by(tid)
    try:
        recorder.since_ns = since_ns
        recorder.start({})
        recorder.since_ns = 0
    finally:
        _core.later_by(0)
    from sonde.job.uncaught import uncaught

    # This program has only just begun: an exception that it has already met is what is ending it.
    if getattr(sys, "last_value", None) is not None:
        uncaught.seen = None
    return True


def begin_before_fork(since_ns: int, tid: int) -> bool:
    """Begin, so that the child is followed as the child of any recorded process."""
    has_begun = begin(since_ns, tid)
    from sonde import _core

    _core.fork_rest()  # the recorder's own hook comes too late for this fork
    return has_begun


def record_failure(_since_ns: int, _tid: int) -> None:
    """Record a program that ends with an exception before its recording has begun."""
    if _is_helper(getattr(sys, "orig_argv", [])):
        return
    from sonde.job.recorder import recorder
    from sonde.job.source_context import SourceContext

    recorder.start({})
    SourceContext(recorder, "recorder").guard(recorder.end_with_program)(True)
