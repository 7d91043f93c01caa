"""A service that remembers every row it has parsed, in a cache without a limit, as with
`functools.lru_cache(maxsize=None)` around a parser; the heap is recorded."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "memory_creep", "allocates what stays", "parse", True
OPTIONS, LIMITS = {"source.heap": "on"}, {"memory_creep.grown_bytes": 3e7}
ALSO = ("gc_pauses",)

if __name__ == "__main__":
    import time

    from loop import FIXED, until_over

    seen: dict[int, dict[str, object]] = {}

    def parse(number: int) -> dict[str, object]:
        return {"id": number, "name": "x" * 3000, "tags": [str(tag) for tag in range(20)]}

    def look_up(number: int) -> dict[str, object]:
        if FIXED:
            number %= 1000
        if number not in seen:
            seen[number] = parse(number)
        return seen[number]

    for step in until_over():
        for at in range(100):
            look_up(100 * step + at)
        time.sleep(0.01)
