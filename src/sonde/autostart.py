"""What the .pth hook calls when the environment asks for it: record before the program starts."""

from __future__ import annotations

import sys

# Python processes that belong to the machinery, not to the program.
_HELPERS = ("from multiprocessing.resource_tracker", "from multiprocessing.semaphore_tracker")


def start() -> None:
    """Record this process if the environment asks for it. Never raises."""
    from sonde import config
    from sonde.recorder import recorder

    if config.is_asked_for() and not _is_helper(getattr(sys, "orig_argv", [])):
        recorder.start({})


def _is_helper(argv: list[str]) -> bool:
    if any(word.startswith(_HELPERS) for word in argv[1:4]):
        return True
    # The tool itself: `sonde query …` under SONDE=1 records nothing.
    program = argv[1] if len(argv) > 1 else ""
    return program.endswith("/sonde") or argv[1:3] == ["-m", "sonde"]
