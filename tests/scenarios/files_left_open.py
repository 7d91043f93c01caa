"""A program that opens a file for each piece of work and keeps it: one day there are too many.

As in pscheduler issue 245 and sh issue 336."""

from __future__ import annotations

RULE, CAUSE = "handles_creep", "open files"
LINE = "open_scratch"
TWIN = True
LIMITS = {"handles_creep.parts": 4}

if __name__ == "__main__":
    import tempfile
    import time
    from typing import IO

    from loop import FIXED, until_over

    kept: list[IO[bytes]] = []

    def open_scratch() -> IO[bytes]:
        return tempfile.TemporaryFile()

    def handle() -> None:
        file = open_scratch()
        file.write(b"result")
        if FIXED:
            file.close()
        else:
            kept.append(file)

    for _step in until_over():
        handle()
        time.sleep(0.01)
