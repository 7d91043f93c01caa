"""Start recording before the program starts: the .pth hook calls this."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the enums of `signal` are slow to create
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
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def _start() -> None:
    from sonde import environ

    if _is_helper(getattr(sys, "orig_argv", [])):
        return
    if environ.is_asked_for() and environ.may_start_late():
        from sonde.job import late_start

        late_start.wait()
    elif environ.is_asked_for():
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
