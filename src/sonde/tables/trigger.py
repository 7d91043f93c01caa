"""Conditions of trigger.on that were met."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u64


class Trigger:
    """A condition of trigger.on that was met, and where its thread was; all threads are sampled."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    number: u64 = column("number within this recording, from 1")
    condition: text = column("the condition, as in trigger.on")
    value: f64 | None = column(
        "what was measured: seconds of a step, span or hang; bytes; the value of the counter"
    )
    thread: i64 = column("kernel id of the thread concerned; the main thread for hang and memory")
    stack: i64 | None = column("id of its stack at that moment, see python.frame")
    missed: u64 = column("conditions met before this one without a row: see trigger.most")


ROWS = (Trigger,)
