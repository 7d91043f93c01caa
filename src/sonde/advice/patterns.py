"""The usage patterns of OpenPAI's profiler, judged on the samples of one piece as it judges them,
and whether two rhythms oppose each other by more than chance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

_SMOOTH = 10  # samples in the moving average
_MOST = 0.6  # of the turning points


def is_uneven(memory: Sequence[float], skew: float, idle: float = 0.01) -> bool:
    """Pattern 0: does the mean memory in use of the GPUs, 0 to 1, differ by more than `skew`,
    absolutely or relative to the fullest?"""
    if len(memory) < 2 or max(memory) < idle:
        return False
    gap = max(memory) - min(memory)
    return gap > skew or gap / max(memory) > skew


def is_alternating(cpu: Sequence[float], gpu: Sequence[float]) -> bool:
    """Pattern 3, for a GPU that has time to spare: is the CPU lowest while the GPU's use falls, or
    highest while it rises?"""
    if len(cpu) < 3:
        return False
    smooth = list(_smooth(cpu))
    order = sorted(smooth)
    low, high = order[int(len(order) * 0.2)], order[int(len(order) * 0.8)]
    lows, highs = [0, 0], [0, 0]  # while the GPU's use falls, rises
    for at, rises in enumerate(_find_directions(gpu)):
        if rises is None or not 0 < at < len(smooth) - 1:
            continue
        before, here, after = smooth[at - 1 : at + 2]
        lows[rises] += here < before and here < after and here < low
        highs[rises] += here > before and here > after and here > high
    if not sum(lows) or not sum(highs):
        return False
    return lows[False] / sum(lows) > _MOST or highs[True] / sum(highs) > _MOST


def _smooth(values: Sequence[float]) -> Iterator[float]:
    # Carried on instead of summed anew: rounding decides ties, and the votes must be the same.
    mean = 0.0
    for at, value in enumerate(values):
        if at < _SMOOTH:
            mean = (mean * at + value) / (at + 1)
        else:
            mean = (mean * _SMOOTH - values[at - _SMOOTH] + value) / _SMOOTH
        yield mean


def _find_directions(values: Sequence[float]) -> Iterator[bool | None]:
    """Yield for each sample whether the value rises, or last did; None before it first moves."""
    rises: bool | None = values[1] > values[0] if values[1] != values[0] else None
    yield rises
    for before, here in pairwise(values):
        if here != before:
            rises = here > before
        yield rises


# ---- more than chance ----------------------------------------------------------------------------


def correlate(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the correlation, and how many standard errors it is away from chance.

    Neighbouring samples repeat each other, so the more alike they are, the less they count."""
    count = len(one)
    if count < 4:
        return 0.0, 0.0
    a, b = _standardize(one), _standardize(other)
    if a is None or b is None:
        return 0.0, 0.0
    r = fmean(x * y for x, y in zip(a, b, strict=True))
    alike = _lag(a) * _lag(b)
    free = count * (1 - alike) / (1 + alike) if alike > 0 else count
    if free <= 3:
        return r, 0.0
    r = max(-0.999999, min(0.999999, r))
    return r, math.atanh(r) * math.sqrt(free - 3)


def _standardize(values: Sequence[float]) -> list[float] | None:
    mean = fmean(values)
    spread = math.sqrt(fmean((value - mean) ** 2 for value in values))
    return [(value - mean) / spread for value in values] if spread > 1e-9 else None


def _lag(values: Sequence[float]) -> float:
    """Return how alike neighbours are."""
    return sum(x * y for x, y in pairwise(values)) / len(values)
