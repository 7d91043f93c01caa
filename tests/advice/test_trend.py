"""What counts as growth, and what does not."""

from __future__ import annotations

import random

import pytest

from sonde.advice.trend import find_growth, find_order, fit_line


def grow(values: list[float]) -> object:
    return find_growth(list(enumerate(values)), 0.8, 6)


def test_a_steady_growth_is_found_with_its_slope() -> None:
    trend = grow([100 + 5 * at for at in range(12)])
    assert trend is not None
    assert trend.slope == pytest.approx(5)
    assert trend.growth == pytest.approx(55)
    assert trend.fit == pytest.approx(1)


def test_a_steady_growth_is_found_in_noise() -> None:
    chance = random.Random(2)
    assert grow([100 + 5 * at + chance.gauss(0, 4) for at in range(30)])


def test_what_levels_off_is_not_growth() -> None:
    assert grow([100 - 100 * 0.5**at for at in range(12)]) is None


def test_one_step_up_is_not_growth() -> None:
    assert grow([100.0] * 6 + [200.0] * 6) is None


def test_noise_is_not_growth() -> None:
    chance = random.Random(3)
    assert not any(grow([chance.gauss(100, 5) for _ in range(12)]) for _ in range(200))


def test_too_few_pieces_are_not_judged() -> None:
    assert grow([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_a_line_through_nothing_is_flat() -> None:
    assert fit_line([]) == (0.0, 0.0)
    assert fit_line([(0, 1), (0, 2)]) == (0.0, 0.0)


def test_rising_order_is_one_whatever_the_heights() -> None:
    assert find_order([1, 2, 4, 900, 901]) == pytest.approx(1)
    assert find_order([5, 4, 3, 2]) == pytest.approx(-1)
    assert find_order([1, 2, 3, 2.5, 9, 5]) == pytest.approx(1 - 6 * 4 / (6 * 35))
    assert find_order([1]) == 0
