"""Tell from readings of a process's memory whether it keeps growing, fast or slowly."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

START_S = 5.0  # of a recording, which does not count: imports, and caches that fill up
STEPS = 12  # of one window; the shortest has readings a second apart, each further one half as many
WINDOWS = 9  # the longest is 51 minutes
LEAST_BYTES = 25e6  # growth within a window that is worth a look
LEAST_PCT = 5.0  # of the size of the process that it has grown by
MOST_FLAT = 3  # steps of a window without growth: the program may have had no processor
MOST_AT_ONCE = 0.4  # of the growth, in one step: more is something that was loaded
_FLAT = 0.02  # of the growth: a step with less is flat
_LEAST_MORE = 1e6  # bytes; what changes by less does not grow
_EARLY_S = 0.25  # a reading may come so much too early and be taken all the same

Point = tuple[float, float]  # seconds, bytes


class Grown(NamedTuple):
    """A steady growth."""

    bytes: float
    seconds: float


class MemoryGrowth:
    """Readings of one process at several distances in time. Memory that is lost slowly is seen over
    a long window only; one that is lost fast, before it is too late, over a short one."""

    def __init__(self, start_s: float) -> None:
        self._begin_s = start_s + START_S
        self._windows = [deque[Point](maxlen=STEPS + 1) for _ in range(WINDOWS)]
        self._most_bytes = 0.0
        self.grown_s = start_s  # when it was last larger than ever

    def add(self, t_s: float, size_bytes: float) -> Grown | None:
        """Take a reading; return the growth of the shortest window that now grows steadily."""
        if size_bytes > self._most_bytes + _LEAST_MORE:
            self._most_bytes, self.grown_s = size_bytes, t_s
        found: Grown | None = None
        for at, window in enumerate(self._windows):
            if t_s < self._begin_s or (window and t_s - window[-1][0] < 2**at - _EARLY_S):
                break  # the further ones have their last reading from before
            window.append((t_s, size_bytes))
            found = found or _judge(window)
        return found

    def forget(self, until_s: float = float("inf")) -> None:
        """Begin anew: what was seen until then is dealt with."""
        for window in self._windows:
            while window and window[0][0] < until_s:
                window.popleft()


def _judge(window: deque[Point]) -> Grown | None:
    if len(window) <= STEPS:
        return None
    sizes = [size for _, size in window]
    grown = sizes[-1] - sizes[0]
    if grown < max(LEAST_BYTES, LEAST_PCT / 100 * sizes[-1]):
        return None
    steps = [after - before for before, after in pairwise(sizes)]
    grows = [step > _FLAT * grown for step in steps]
    if grows.count(False) > MOST_FLAT or max(steps) > MOST_AT_ONCE * grown or not any(grows[-2:]):
        return None
    return Grown(grown, window[-1][0] - window[0][0])
