"""Numbers that were seen are kept in a list.

As in aquasecurity/kube-hunter pull request 231."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Searching in a list"
LINE = "add"
TWIN = True

if __name__ == "__main__":
    from loop import FIXED, until_over

    class Seen:
        def __init__(self) -> None:
            self.items: list[int] | set[int] = set() if FIXED else []

        def add(self, item: int) -> bool:
            if item in self.items:
                return False
            self.items.add(item) if isinstance(self.items, set) else self.items.append(item)
            return True

    def remove_doubles(numbers: list[int]) -> list[int]:
        seen = Seen()
        return [number for number in numbers if seen.add(number)]

    for _step in until_over():
        remove_doubles([number * 7919 % 4001 for number in range(8000)])
