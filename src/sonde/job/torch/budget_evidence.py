"""Measure the cost of recording by comparing recorded steps with unrecorded neighbours."""

from __future__ import annotations

from math import expm1, log, sqrt

# Logarithms of ratios are kept in places of 1/2000, and limited to ±3 (a factor of 20), because
# everything beyond is an outlier.
_FINE, _FAR = 2000, 3.0
_MOST = 8192  # ratios that count; with more, the older ones fade
_LEAST = 16  # ratios needed for a result
# Several ratios share a step and are not independent: about this many of them are worth one.
_SHARED = 3.0
_REACH = 2  # steps on either side that a step is compared with


class Ratios:
    """The median of many ratios of durations with its confidence interval, in constant memory.

    Both steps of a ratio have the same kind of noise, so its logarithm is distributed evenly around
    the true cost, whatever that noise is. The median is therefore right even with heavy tails, and
    an occasional checkpoint is an outlier without effect."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0

    def add(self, recorded_ns: int, bare_ns: int) -> None:
        """Add a recorded step and an unrecorded one, both longer than 0."""
        ratio = max(-_FAR, min(_FAR, log(recorded_ns / bare_ns)))
        place = round(ratio * _FINE)
        self._counts[place] = self._counts.get(place, 0) + 1
        self.total += 1
        if self.total > _MOST:
            self._counts = {at: half for at, count in self._counts.items() if (half := count // 2)}
            self.total = sum(self._counts.values())

    def read(self, sure: float) -> tuple[float, float, float] | None:
        """Return the median and an interval of `sure` standard deviations, or None if there are too
        few ratios.

        The bounds of the median come from ranks, which assume nothing about the noise."""
        if self.total < _LEAST:
            return None
        spread = sure * sqrt(_SHARED * self.total) / 2
        ranks = (self.total / 2, self.total / 2 - spread, self.total / 2 + spread)
        places = sorted(self._counts.items())
        middle, low, high = (expm1(_find(places, rank) / _FINE) for rank in ranks)
        return middle, low, high


def _find(places: list[tuple[int, int]], rank: float) -> float:
    """Return the position of this rank among counted places, interpolating inside each."""
    if rank < 0 or rank > sum(count for _at, count in places):
        return _FAR * _FINE * (-1 if rank < 0 else 1)  # beyond all observations
    below = 0
    for at, count in places:
        if below + count >= rank:
            return at - 0.5 + (rank - below) / count
        below += count
    return places[-1][0] + 0.5


class Neighbours:
    """Pairs each step of the rarer kind with the steps of the other kind next to it.

    Steps this close are affected alike by anything that changes slowly."""

    def __init__(self) -> None:
        self._window: list[tuple[int, int, int]] = []
        self._bare = 0  # steps in it that were not recorded
        self._last_bare = -1

    def clear(self) -> None:
        self._window.clear()
        self._bare = 0

    def add(self, step: int, duration_ns: int, kind: int, ratios: dict[int, Ratios]) -> int:
        """Take a step of a kind (0: not recorded), and add ratios of recorded kinds to `ratios`.
        Return how many unrecorded steps were used for the first time."""
        window = self._window
        if window and window[-1][0] + 1 != step:
            self.clear()
        window.append((step, duration_ns, kind))
        if not kind:
            self._bare += 1
        if len(window) <= 2 * _REACH:
            return 0
        # Most steps are of the same kind as their neighbours, and end here.
        others = self._bare if window[_REACH][2] else len(window) - self._bare
        used = self._pair(ratios) if others > _REACH else 0
        if not window[0][2]:
            self._bare -= 1
        del window[0]
        return used

    def _pair(self, ratios: dict[int, Ratios]) -> int:
        _step, middle_ns, middle = self._window[_REACH]
        used = 0
        for at, other_ns, other in self._window:
            if middle == 0 and other:
                ratios[other].add(other_ns, middle_ns)
                used = 1
            elif middle and other == 0:
                ratios[middle].add(middle_ns, other_ns)
                used += at > self._last_bare
                self._last_bare = max(at, self._last_bare)
        return used
