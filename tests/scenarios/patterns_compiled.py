"""More words than Python remembers patterns for are searched for, one after the other.

As in python-phonenumbers issue 108 and pySBD issue 41."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "compiled again"
LINE = "count_word"
TWIN = True

if __name__ == "__main__":
    import re

    from loop import FIXED, until_over

    WORDS = [f"word{number}" for number in range(700)]
    KNOWN = {word: re.compile(rf"\b{word}\b") for word in WORDS} if FIXED else {}
    TEXT = " ".join(WORDS[::50])

    def count_word(word: str, text: str) -> int:
        return len(KNOWN[word].findall(text) if FIXED else re.findall(rf"\b{word}\b", text))

    def count_all(text: str) -> dict[str, int]:
        return {word: count_word(word, text) for word in WORDS}

    for _step in until_over():
        count_all(TEXT)
