"""The patterns of OpenPAI's profiler, against the votes of its own code; and what is more than chance."""

from __future__ import annotations

import json
import math
import random

import pytest

from sonde.advice.patterns import correlate, is_alternating, is_uneven
from support.places import GOLDEN

# Windows made by hand, and the votes of OpenPAI's Adviser.detect_pattern (its np.float given back).
WINDOWS = json.loads((GOLDEN / "pai_votes.json").read_text())


def spread(values: object, samples: int) -> list[float]:
    return values if isinstance(values, list) else [float(values)] * samples  # type: ignore[arg-type]


def mean(values: object) -> float:
    return sum(values) / len(values) if isinstance(values, list) else values  # type: ignore[return-value]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window["name"])
def test_memory_votes_are_the_originals(window: dict) -> None:
    used = [mean(gpu["used"]) / gpu["total"] for gpu in window["gpu"]]
    assert is_uneven(used, 0.15) == window["votes"][0]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window["name"])
def test_alternation_votes_are_the_originals(window: dict) -> None:
    cpu = spread(window["cpu"], window["samples"])
    gpu = spread(window["gpu"][0]["util"], window["samples"])
    assert (mean(gpu) < 85 and is_alternating(cpu, gpu)) == window["votes"][3]


def test_the_golden_windows_have_votes_of_both_kinds_for_every_pattern() -> None:
    for pattern in range(4):
        votes = {window["votes"][pattern] for window in WINDOWS}
        assert votes == {0, 1}


def test_opposite_rhythms_are_far_from_chance() -> None:
    cpu = [90.0 if at % 4 < 2 else 10.0 for at in range(10)]
    r, errors = correlate(cpu, [100 - value for value in cpu])
    assert r == pytest.approx(-1, abs=1e-3)
    assert errors < -2.5


def test_what_never_changes_correlates_with_nothing() -> None:
    assert correlate([5.0] * 10, [float(at) for at in range(10)]) == (0.0, 0.0)


def test_independent_walks_are_seldom_far_from_chance() -> None:
    # A walk's neighbours are alike: taken for independent, they would be "significant" half the time.
    chance = random.Random(1)

    def walk() -> list[float]:
        values = [0.0]
        for _ in range(79):
            values.append(0.9 * values[-1] + chance.gauss(0, 1))
        return values

    far = sum(correlate(walk(), walk())[1] < -2.5 for _ in range(500))
    assert far < 25
    naive = math.sqrt(77)
    plain = sum(math.atanh(correlate(walk(), walk())[0]) * naive < -2.5 for _ in range(500))
    assert plain > 50
