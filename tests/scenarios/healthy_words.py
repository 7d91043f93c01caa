"""A program that counts words with dictionaries and sets: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    from collections import Counter

    from loop import until_over

    STOP = {"the", "a", "of", "and"}
    text = " ".join(f"the word{n % 997} of {n % 13}" for n in range(20_000))

    def count(text: str) -> Counter[str]:
        return Counter(word for word in text.split() if word not in STOP)

    for _step in until_over():
        count(text).most_common(10)
