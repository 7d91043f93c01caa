"""What a benchmark found: one row of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median, quantiles


@dataclass
class Result:
    """Samples of one quantity, beside a goal and the same of others."""

    what: str
    unit: str
    samples: Sequence[float]
    goal: float | None = None  # None: shown for information
    at_least: bool = False  # the goal is a floor, not a ceiling
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    noise: float = 0.0  # what the same measurement says where there is nothing to find
    note: str = ""

    @property
    def value(self) -> float:
        """The median; of nothing, not a number."""
        return median(self.samples) if self.samples else float("nan")

    @property
    def verdict(self) -> str:
        """`met`, `not met`, `unresolved` if the noise decides, or a dash where there is no goal."""
        if self.goal is None or not self.samples:
            return "-"
        room = self.value - self.goal if self.at_least else self.goal - self.value
        if abs(room) < self.noise:
            return "unresolved"
        return "met" if room >= 0 else "not met"


def find_noise(samples: Sequence[float]) -> float:
    """How far off their median may be, 19 times in 20. From the quartiles: some samples of a busy
    machine are far out."""
    low, _middle, high = quantiles(samples, n=4)
    return 2 * 1.25 * (high - low) / 1.35 / sqrt(len(samples))


def interleave(rounds: int, calls: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """A, B, C, A, B, C, …: what disturbs the machine for a while disturbs all alike."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(call())
    return samples
