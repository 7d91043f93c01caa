"""A search takes its next node from the front of a list.

As in nltk pull request 3105 and simpleai pull request 31."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "front of a list"
LINE = "take"
TWIN = True

if __name__ == "__main__":
    from collections import deque

    from loop import FIXED, until_over

    def take(waiting: list[int] | deque[int]) -> int:
        return waiting.popleft() if isinstance(waiting, deque) else waiting.pop(0)

    def visit(count: int) -> int:
        waiting: list[int] | deque[int] = (deque if FIXED else list)(range(count))
        total = 0
        while waiting:
            total += take(waiting) % 7
        return total

    for _step in until_over():
        visit(60_000)
