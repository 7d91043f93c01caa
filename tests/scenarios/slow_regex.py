"""Addresses are tested by a pattern with a repetition inside a repetition.

As in nficano/python-lambda issue 723 and sgl-project/sglang issue 31912."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "regular expression"
LINE = "is_valid"
TWIN = True

if __name__ == "__main__":
    import re

    from loop import FIXED, burn, until_over

    PATTERN = re.compile(r"^(\w+\.?)+@example\.org$" if not FIXED else r"^[\w.]+@example\.org$")

    def is_valid(address: str) -> bool:
        return PATTERN.match(address) is not None

    def check(users: list[str]) -> int:
        return sum(is_valid(user) for user in users)

    for _step in until_over():
        check(["ann.b@example.org", "a" * 24 + "!"])
        burn(0.005)
