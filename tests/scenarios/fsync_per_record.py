"""A journal is synced after every record.

As in borgbackup/borgstore issue 10 and sardana pull request 651."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "fsync"
LINE = "append"
TWIN = True
ALSO = ("io_pressure",)

if __name__ == "__main__":
    import os
    import tempfile
    from typing import IO

    from loop import FIXED, burn, until_over

    class Journal:
        def __init__(self, file: IO[bytes]) -> None:
            self.file = file

        def append(self, record: bytes) -> None:
            self.file.write(record)
            if not FIXED:
                self.file.flush()
                os.fsync(self.file.fileno())

    with tempfile.NamedTemporaryFile(dir=".") as file:
        journal = Journal(file)
        for _step in until_over():
            journal.append(b"record" * 100)
            burn(0.0002)
