"""How long asyncio's tasks awaited what, in two recordings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sonde.advice.compare_measures import LESS, Measure
from sonde.advice.period import Period
from sonde.analysis.awaits import Await, read_awaits
from sonde.analysis.code_names import shorten_file
from sonde.store.recording import FrozenRecording
from sonde.words import shorten_func

# By place: the number is a mean over all waits that were seen to end, not one of each piece.
AWAITS = Measure("await", "ms an await", "", LESS, 20.0, 50.0, is_keyed=True)
TABLE = "python.task_wait"
FEWEST = 10  # waits that must have been seen to end, on each side
_PART = 0.02  # of the time that tasks awaited: less than that is left out


def read_all(recording: FrozenRecording, cut: Period) -> dict[str, Await]:
    """Return what tasks awaited in a period, by its name."""
    folder = recording.sessions[0].meta.cwd
    found: dict[str, Await] = {}
    for one in read_awaits(recording, cut.words["inside"]):
        where = f"{shorten_func(one.func)} ({shorten_file(one.file, folder)})"
        name = f"{where}, awaiting {one.awaited}"
        found.setdefault(name, one)  # of two lines of one function, the one that is awaited most
    return found


def compare_awaits(
    sides: Sequence[dict[str, Await]], sure: float
) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield each place that tasks of both sides wait at: its name, how long before and after in
    ms, and the ends of the interval of the change; `sure` is its half, in standard errors."""
    wholes = [sum(one.awaited_ns for one in side.values()) for side in sides]
    for name in sides[0].keys() & sides[1].keys():
        before, after = (side[name] for side in sides)
        parts = [one.awaited_ns / whole for one, whole in zip((before, after), wholes, strict=True)]
        if max(parts) < _PART or min(before.ended, after.ended) < FEWEST:
            continue
        old, new = ((one.wait_ns or 0.0) / 1e6 for one in (before, after))
        # Waits end one by one: the error of a count is its root.
        factor = math.exp(sure * math.sqrt(1 / before.ended + 1 / after.ended))
        yield name, old, new, new / factor - old, new * factor - old
