"""Processes that the program has started."""

from __future__ import annotations

from sonde.session.schema import column, i64, text


class Spawn:
    """A process that the program has started, and the line that did; not os.system, nor what
    extensions start."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when the call began; of a fork, when it was done", "ns")
    dur_ns: i64 | None = column("how long the call took; NULL of a fork", "ns")
    child: i64 | None = column("pid of the new process; NULL if the kernel does not tell")
    how: text = column("exec (subprocess, multiprocessing's spawn), posix_spawn or fork")
    program: text | None = column("what was started, without arguments; NULL of a fork")
    thread: i64 = column("kernel id of the thread that started it")
    func: text | None = column(
        "function that started it: the innermost one of the program's own; else of a library"
    )
    file: text | None = column("source file")
    lineno: i64 | None = column("line")


ROWS = (Spawn,)
