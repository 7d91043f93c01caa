"""Start recording before the program starts: the .pth hook calls this."""

from __future__ import annotations

import sys

# Helper processes of Python's own, which are not part of the program.
_HELPERS = ("from multiprocessing.resource_tracker", "from multiprocessing.semaphore_tracker")


def start() -> None:
    """Record this process, or profile it, if the environment asks for it."""
    from sonde import environ
    from sonde.job.recorder import recorder

    if _is_helper(getattr(sys, "orig_argv", [])):
        return
    if environ.is_asked_for():
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
