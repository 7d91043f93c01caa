"""An index is made by copying all of it for each record that is added.

As reducers do that were written for languages whose maps share what they have in common."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "into new ones"
LINE = "merge"
TWIN = True

if __name__ == "__main__":
    from functools import reduce

    from loop import FIXED, until_over

    def merge(index: dict[str, int], number: int) -> dict[str, int]:
        if FIXED:
            index[f"eu/{number}"] = number
            return index
        return {**index, f"eu/{number}": number}

    def build_index(count: int) -> dict[str, int]:
        return reduce(merge, range(count), {})

    for _step in until_over():
        build_index(3000)
