"""A parser takes the first token by cutting it off the list.

As in andialbrecht/sqlparse issue 621."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Slices copy"
LINE = "take"
TWIN = True

if __name__ == "__main__":
    from loop import FIXED, until_over

    class Parser:
        def __init__(self, tokens: list[str]) -> None:
            self.tokens, self.at = tokens, 0

        def take(self) -> str:
            if FIXED:
                self.at += 1
                return self.tokens[self.at - 1]
            token, self.tokens = self.tokens[0], self.tokens[1:]
            return token

        def parse_number(self) -> int:
            return int(self.take())

        def parse_sum(self, parts: int) -> int:
            total = self.parse_number()
            for _part in range(parts - 1):
                self.take()
                total += self.parse_number()
            return total

    for _step in until_over():
        Parser(["7", "+"] * 12000).parse_sum(12000)
