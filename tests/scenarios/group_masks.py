"""A mean for each sensor: all of the array is compared for each of them, and not grouped once.

As in questions about "numpy group by" that have loops over `numpy.unique`."""

from __future__ import annotations

RULE, CAUSE = "places", "sort or group once"
LINE = "find_means"
TWIN = True
NEEDS = "numpy"

if __name__ == "__main__":
    import numpy as np
    from loop import FIXED, until_over

    SENSORS = 2000

    def find_means(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
        if FIXED:
            counts = np.bincount(ids, minlength=SENSORS)
            return np.bincount(ids, weights=values, minlength=SENSORS) / np.maximum(counts, 1)
        found = np.zeros(SENSORS)
        for sensor in range(SENSORS):
            found[sensor] = values[ids == sensor].sum()
        return found

    chance = np.random.default_rng(0)
    hour = chance.integers(0, SENSORS, 300_000), chance.normal(size=300_000)
    for _ in until_over():
        find_means(*hour)
