"""The distance of two words is asked for the same ends of them again and again.

As in the questions on Stack Overflow why a recursive Levenshtein distance takes for ever."""

from __future__ import annotations

RULE, CAUSE = "places", "calls itself"
LINE = "measure"
TWIN = True

if __name__ == "__main__":
    from functools import lru_cache

    from loop import FIXED, burn, until_over

    def measure(one: str, other: str) -> int:
        if not one or not other:
            return len(one) + len(other)
        if one[-1] == other[-1]:
            return measure(one[:-1], other[:-1])
        return 1 + min(measure(one[:-1], other), measure(one, other[:-1]),
                       measure(one[:-1], other[:-1]))  # fmt: skip

    if FIXED:
        measure = lru_cache(10_000)(measure)
    words = ("calendar", "colander", "cylinder", "islander")

    def suggest(word: str) -> str:
        burn(0.005)
        return min(words, key=lambda one: measure(word, one))

    for step in until_over():
        suggest(f"kalen{step % 97}")
