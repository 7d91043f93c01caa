"""A simulation copies its whole state in every step.

As in kayak/pypika issue 160 and godatadriven/evol issue 73."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "deepcopy"
LINE = "step"
TWIN = True

if __name__ == "__main__":
    import copy

    from loop import FIXED, burn, until_over

    State = dict[str, list[list[float]]]

    def step(state: State) -> State:
        after = {"cells": list(state["cells"])} if FIXED else copy.deepcopy(state)
        after["cells"][0] = [value + 1 for value in after["cells"][0]]
        return after

    def simulate(state: State) -> State:
        state = step(state)
        burn(0.002)
        return state

    state: State = {"cells": [[float(x) for x in range(100)] for _ in range(100)]}
    for _step in until_over():
        state = simulate(state)
