"""States that make a hash of all they have each time that a set is asked for them.

As in linkml-runtime pull request 329 and pip issue 8480."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "hashing objects"
LINE = "count_new"
TWIN = True

if __name__ == "__main__":
    import random

    from loop import FIXED, until_over

    class State:
        def __init__(self, cells: list[int]) -> None:
            self.cells = cells
            self.known = hash(tuple(cells))

        def __hash__(self) -> int:
            return (
                self.known if FIXED else hash(str([(at, one) for at, one in enumerate(self.cells)]))
            )

        def __eq__(self, other: object) -> bool:
            return isinstance(other, State) and self.cells == other.cells

    states = [State([random.randrange(9) for _ in range(50)]) for _ in range(2000)]

    def count_new(seen: set[State]) -> int:
        return sum(1 for state in states if state not in seen)

    for _step in until_over():
        count_new(set(states[:100]))
