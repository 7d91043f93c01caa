"""Trends: does a number grow from piece to piece, and is it still growing?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

_STILL = 0.3  # of the whole slope: growth that goes on, not one that levels off


class Trend(NamedTuple):
    """A steady growth from the first third of the pieces to the last."""

    growth: float  # from the first piece to the last
    slope: float  # per piece
    fit: float  # R²


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and R² of the straight line through points (x, y); (0, 0) if there is none."""
    count = len(points)
    if count < 2:
        return 0.0, 0.0
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    if xx == 0 or yy == 0:
        return 0.0, 0.0
    return xy / xx, xy * xy / (xx * yy)


def find_growth(points: Sequence[tuple[float, float]], fit: float, least: int) -> Trend | None:
    """Return the growth of points (piece, value): each third is above the one before, near a
    straight line, and not levelling off. None if there is none, or fewer than `least` pieces."""
    if len(points) < max(3, least):
        return None
    third = len(points) // 3
    parts = points[:third], points[third:-third], points[-third:]
    first, middle, last = (median(value for _, value in part) for part in parts)
    slope, straight = fit_line(points)
    if not first < middle < last or slope <= 0 or straight < fit:
        return None
    end_x, end_y = points[-1]
    mid_x, mid_y = points[len(points) // 2]
    if (end_y - mid_y) / (end_x - mid_x) < _STILL * slope:
        return None
    return Trend(end_y - points[0][1], slope, straight)


def find_order(values: Sequence[float]) -> float:
    """Return how far numbers come in rising order, from -1 to 1 (Spearman's rank correlation): one
    that is far out counts no more than any other."""
    places = sorted(range(len(values)), key=values.__getitem__)
    ranks = {at: rank for rank, at in enumerate(places)}
    count = len(values)
    if count < 2:
        return 0.0
    off = sum((rank - at) ** 2 for at, rank in ranks.items())
    return 1 - 6 * off / (count * (count**2 - 1))
