"""A writer flushes its file after each line.

As in astrofrog/psrecord pull request 85 and lsst/rubin_sim pull request 64."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Flushing"
LINE = "write"
TWIN = True

if __name__ == "__main__":
    import tempfile
    from typing import IO

    from loop import FIXED, until_over

    def write(file: IO[str], number: int) -> None:
        file.write(f"{number}\n")
        if not FIXED:
            file.flush()

    def export(file: IO[str]) -> None:
        for number in range(1000):
            write(file, number)
        file.seek(0)

    with tempfile.TemporaryFile("w+") as file:
        for _step in until_over():
            export(file)
