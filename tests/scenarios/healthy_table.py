"""A table of numbers is read and added up, over and over: all of it is work."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import csv
    import io
    from collections import Counter

    from loop import until_over

    text = "\n".join(f"{number},{number % 7},{number * 3}" for number in range(20_000))

    def add_up(file: io.StringIO) -> Counter[str]:
        sums = Counter[str]()
        for _number, group, value in csv.reader(file):
            sums[group] += int(value)
        return sums

    for _step in until_over():
        add_up(io.StringIO(text))
