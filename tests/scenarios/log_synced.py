"""The handler of a log has the disk write each record at once; the log is not what is slow."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "fsync"
LINE = "emit"
ALSO = ("io_pressure",)
TWIN = True

if __name__ == "__main__":
    import logging
    import os
    import tempfile

    from loop import FIXED, burn, until_over

    class Handler(logging.FileHandler):
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            if not FIXED:
                os.fsync(self.stream.fileno())

    log = logging.getLogger("orders")
    with tempfile.NamedTemporaryFile(dir=os.environ.get("SCRATCH", "/var/tmp")) as file:
        log.addHandler(Handler(file.name))
        for step in until_over():
            burn(0.0005)
            log.warning("order %d", step)
