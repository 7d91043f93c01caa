"""Every item writes a line of JSON to a log.

As in csv2cash issue 11 and lsjostro/flumelogger issue 3."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Logging"
LINE = "handle"
TWIN = True

if __name__ == "__main__":
    import json
    import logging
    import tempfile

    from loop import FIXED, until_over

    class Lines(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return json.dumps({"at": self.formatTime(record), "text": record.getMessage()})

    def handle(number: int) -> int:
        value = sum(number % divisor for divisor in range(1, 40))
        log.debug("item %d has %d", number, value)
        return value

    with tempfile.NamedTemporaryFile() as file:
        handler = logging.FileHandler(file.name)
        handler.setFormatter(Lines())
        log = logging.getLogger("items")
        log.addHandler(handler)
        log.setLevel("INFO" if FIXED else "DEBUG")
        for step in until_over():
            handle(step)
