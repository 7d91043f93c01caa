"""Processes that the program has started."""

from __future__ import annotations

from sonde.session.schema import column, i64, text


class Spawn:
    """A process that the program has started, and the line that did; not forks, os.system, nor what
    extensions start."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when the call began", "ns")
    dur_ns: i64 = column("how long the call took", "ns")
    child: i64 = column("pid of the new process")
    how: text = column("exec (subprocess, multiprocessing's spawn) or posix_spawn")
    program: text | None = column("what was started, without arguments")
    thread: i64 = column("kernel id of the thread that started it")
    func: text | None = column(
        "function that started it: the innermost one of the program's own; else of a library"
    )
    file: text | None = column("source file")
    lineno: i64 | None = column("line")


ROWS = (Spawn,)
