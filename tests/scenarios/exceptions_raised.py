"""A look-up that mostly finds nothing says so by an exception, two calls deep.

As in scikit-hep/awkward pull request 2365."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "exceptions"
LINE = "Table."
TWIN = True

if __name__ == "__main__":
    from loop import FIXED, until_over

    class Missing(Exception):
        pass

    class Table:
        def __init__(self) -> None:
            self.known = {number: 2 * number for number in range(0, 1000, 10)}

        def find(self, key: int) -> int:
            try:
                return self.known[key]
            except KeyError:
                raise Missing from None

        def read(self, key: int) -> int:
            if FIXED:
                return self.known.get(key, 0)
            try:
                return self.find(key)
            except Missing:
                return 0

    table = Table()
    for _step in until_over():
        sum(table.read(key) for key in range(1000))
