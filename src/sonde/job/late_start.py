"""The late start of a program that a recorded program has started: most of them end before it.

A session costs more than a program such as `python -c pass` does. It begins after a delay, or when
the program forks, uses sonde, or ends with an exception that nobody caught."""

from __future__ import annotations

import atexit
import os
import sys

from sonde import _core
from sonde.job.fork import DELAY_NS

_since_ns = 0  # while this process waits: since when


def wait() -> None:
    """Begin the recording of this process later."""
    global _since_ns
    _since_ns = _core.clock_ns()
    atexit.register(_at_exit)
    os.register_at_fork(before=_before_fork)
    _core.later(begin, DELAY_NS)


def begin() -> None:
    """Begin now if this process waits."""
    global _since_ns
    since_ns, _since_ns = _since_ns, 0
    if since_ns:
        _core.undisturbed(lambda: _start(since_ns))


def _start(since_ns: int) -> None:
    global _since_ns
    try:
        from sonde.job.recorder import recorder
    except ImportError:
        # This call interrupts the import of that module: by the program, or by `sonde attach`.
        _since_ns = since_ns
        _core.later(begin, DELAY_NS)
        return
    recorder.since_ns = since_ns
    recorder.start({})
    recorder.since_ns = 0


def _before_fork() -> None:
    """Begin, so that the child is followed as the child of any recorded process."""
    if _since_ns:
        begin()
        recorder = getattr(sys.modules.get("sonde.job.recorder"), "recorder", None)
        if recorder is not None:
            recorder.rest()  # its own hooks come too late for this fork


def _at_exit() -> None:
    global _since_ns
    _core.later_finish()
    if not _since_ns:
        return
    _since_ns = 0
    if getattr(sys, "last_value", None) is not None:
        from sonde.job.recorder import recorder
        from sonde.job.source_context import SourceContext

        recorder.start({})
        SourceContext(recorder, "recorder").guard(recorder.end_with_program)(True)
