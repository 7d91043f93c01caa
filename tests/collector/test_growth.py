"""MemoryGrowth is told from a start, from noise, from one load of data and from a size that comes and goes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from sonde.collector.growth import START_S, Grown, MemoryGrowth

MB = 1e6


def find_growth(
    size: Callable[[float], float], until_s: float, every_s: float = 1.0
) -> tuple[float, Grown] | None:
    """When growth is seen first, and what of it."""
    growth, t_s = MemoryGrowth(0.0), 0.0
    while t_s <= until_s:
        grown = growth.add(t_s, size(t_s))
        if grown is not None:
            return t_s, grown
        t_s += every_s
    return None


def test_a_fast_leak_is_seen_within_twenty_seconds() -> None:
    found = find_growth(lambda t: (30 + 5 * t) * MB, 60)
    assert found == (START_S + 12, (60 * MB, 12))


def test_a_slow_leak_is_seen_before_an_hour_has_passed() -> None:
    found = find_growth(lambda t: (300 + 0.03 * t) * MB, 3600)
    assert found is not None and found[0] < 3200


def test_a_leak_that_comes_in_bursts_is_seen_over_a_longer_time() -> None:
    found = find_growth(lambda t: (100 + 30 * (t // 7)) * MB, 300)
    assert found is not None and found[0] > START_S + 30


def test_a_program_that_waits_for_a_processor_now_and_then_grows_all_the_same() -> None:
    found = find_growth(lambda t: (100 + 6 * (t - (t % 9 == 0))) * MB, 40)
    assert found is not None and found[0] <= START_S + 14


@pytest.mark.parametrize("size", [
    lambda t: 500 * MB,
    lambda t: (500 + 30 * math.sin(t)) * MB,
    lambda t: (20 + 50 * min(t, 10)) * MB,  # data is loaded at the start
    lambda t: (500 + 300 * (t >= 30)) * MB,  # and once more
    lambda t: (500 + 3 * (t % 8)) * MB,  # what is freed again, before it is much
    lambda t: (50_000 + 5 * t) * MB,  # little of what the process has
    lambda t: (500 + 0.005 * t) * MB,  # 18 MB in an hour
], ids=["still", "noise", "start", "load", "sawtooth", "large", "slight"])  # fmt: skip
def test_what_does_not_keep_growing_is_left_alone(size: Callable[[float], float]) -> None:
    assert find_growth(size, 300) is None


def test_rare_readings_are_taken_as_they_come() -> None:
    found = find_growth(lambda t: (100 + t) * MB, 300, every_s=5.0)
    assert found == (START_S + 60, (60 * MB, 60))


def test_what_was_seen_once_is_not_seen_again_at_once() -> None:
    growth = MemoryGrowth(0.0)
    seen = [t for t in range(60) if growth.add(t, 10 * t * MB) and growth.forget() is None]
    assert seen == [17, 30, 43, 56]
