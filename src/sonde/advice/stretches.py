"""Which parts of a long period rules look at that read samples: all of it takes minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sonde.session import Session

# Tables with many rows a second. Rules that read none of these judge all of the time.
THINNED = ("python.stack_sample", "python.torch_trace")
_LONG_S = 7200.0  # what is no longer is judged whole
_LATE_S = 3600.0  # at the end, judged whole; and as much of the time before, in stretches
_STRETCH_S = 120.0
_PROCESSES = 4  # of more, less time is looked at, so that it does not take longer
_LAST_S = 120.0  # before the end of a process: whether it stood still then is somebody's question


class Stretches(NamedTuple):
    """All pieces from `late` on, and before that `run` pieces of every `every`."""

    late: int
    run: int
    every: int
    piece_s: float

    def has(self, piece: int) -> bool:
        """Tell whether a piece is looked at."""
        return piece >= self.late or piece % self.every < self.run

    def make_sql(self, piece: str) -> str:
        """Return the condition for rows whose piece is this expression."""
        return f"({piece} >= {self.late} OR {piece} >= 0 AND {piece} % {self.every} < {self.run})"

    def describe(self, count: int) -> str:
        """Return which part of the period was looked at, as a sentence without its end."""
        late, run, every = (
            f"{pieces * self.piece_s / 60:,.0f} min"
            for pieces in (count - self.late, self.run, self.every)
        )
        return (
            f"what samples show was looked for in the last {late}, and before that in {run} of "
            f"every {every}; --since and --until have any two hours judged whole"
        )


def choose_stretches(count: int, piece_s: float, processes: int) -> Stretches | None:
    """Return where to look in a period of so many pieces; None: everywhere."""
    if count * piece_s <= _LONG_S:
        return None
    pieces = math.ceil(_LATE_S * min(1.0, _PROCESSES / processes) / piece_s)
    late, run = count - pieces, max(1, round(_STRETCH_S / piece_s))
    return Stretches(late, run, max(run, math.ceil(run * late / pieces)), piece_s)


def list_ends(sessions: Sequence[Session]) -> list[str]:
    """Return conditions for the last rows of processes that have ended."""
    found = []
    for one in sessions:
        sealed = one.read_sealed()
        if sealed is not None:
            since_us = sealed.end_wall_ns // 1000 - round(_LAST_S * 1e6)
            found.append(f"(pid = {one.pid} AND ts >= make_timestamptz({since_us}))")
    return found
