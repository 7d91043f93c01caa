"""Start recording before the program starts: the .pth hook calls this.

A program that a recorded program has started waits with that, since most of them end soon, and a
session costs more than a program such as `python -c pass` does. It begins after a delay, or when
the program forks, uses sonde, or ends with an exception that nobody caught. Until then only this
module and the core are loaded: each import takes a few per cent of the start of Python."""

import _signal  # type: ignore[import-not-found]  # the enums of `signal` are slow to create
import atexit
import os
import sys

_DELAY_NS = 100_000_000  # most programs that others start have ended by then
# The signals that may ask for a snapshot.
_HELD = (_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGHUP)
# Helper processes of Python's own, which are not part of the program.
_HELPERS = ("from multiprocessing.resource_tracker", "from multiprocessing.semaphore_tracker")
_was_called = False
_since_ns = 0  # while this process waits: since when


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
    if may_wait():
        _wait()
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


# ---- waiting ---------------------------------------------------------------------------------


def may_wait() -> bool:
    """Tell whether a recorded process has started this one as one of its helpers: what it wrote
    down in environ.follow_children() is still so."""
    env = os.environ
    if env.get("SONDE") != "1" or "SONDE_ONLY" in env:
        return False
    pid, *kept = env.get("SONDE_PARENT", "").split(" ")
    pairs = [word.partition("=") for word in kept]
    is_same = all(env.get(name, "") == value for name, _, value in pairs)
    return pid not in ("", str(os.getpid())) and is_same


def _wait() -> None:
    global _since_ns
    from sonde import _core

    _since_ns = _core.clock_ns()
    atexit.register(_at_exit)
    os.register_at_fork(before=_before_fork)
    _core.later(begin, _DELAY_NS)


def begin() -> None:
    """Begin now if this process waits."""
    global _since_ns
    since_ns, _since_ns = _since_ns, 0
    if since_ns:
        from sonde import _core

        _core.undisturbed(lambda: _begin(since_ns))


def _begin(since_ns: int) -> None:
    global _since_ns
    try:
        from sonde.job.recorder import recorder
    except ImportError:
        # This call interrupts the import of that module: by the program, or by `sonde attach`.
        from sonde import _core

        _since_ns = since_ns
        _core.later(begin, _DELAY_NS)
        return
    recorder.since_ns = since_ns
    recorder.start({})
    recorder.since_ns = 0
    from sonde.job.uncaught import uncaught

    # This program has only just begun: an exception that it has already met is what is ending it.
    uncaught.seen = None


def _before_fork() -> None:
    """Begin, so that the child is followed as the child of any recorded process."""
    if _since_ns:
        from sonde import _core

        begin()
        _core.fork_rest()  # the recorder's own hook comes too late for this fork


def _at_exit() -> None:
    global _since_ns
    from sonde import _core

    _core.later_finish()
    if not _since_ns:
        return
    _since_ns = 0
    if getattr(sys, "last_value", None) is not None:
        from sonde.job.recorder import recorder
        from sonde.job.source_context import SourceContext

        recorder.start({})
        SourceContext(recorder, "recorder").guard(recorder.end_with_program)(True)
