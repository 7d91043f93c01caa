"""Values are added to an array one by one, by numpy.append.

As in pandas-dev/pandas issue 35407 and TimeCopilot issue 104."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "copied for each piece"
LINE = "add"
TWIN = True

if __name__ == "__main__":
    import numpy
    from loop import FIXED, until_over

    def add(values: numpy.ndarray, value: float) -> numpy.ndarray:
        return numpy.append(values, value)

    def collect(count: int) -> numpy.ndarray:
        if FIXED:
            return numpy.array([index * 0.5 for index in range(count)])
        values = numpy.zeros(0)
        for index in range(count):
            values = add(values, index * 0.5)
        return values

    for _step in until_over():
        collect(10_000)
