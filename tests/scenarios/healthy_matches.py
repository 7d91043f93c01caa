"""A program that matches each line of a log with one pattern, all in one line: nothing is wrong.

Samples of many short matches in a row look like samples of a single long one."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import re
    from collections import Counter

    from loop import until_over

    PATTERN = re.compile(r'(\S+) - - \[(.*?)\] "(\w+) (\S+) HTTP/1\.\d" (\d{3}) (\d+)')
    lines = [
        f'10.0.0.{n % 256} - - [18/Nov/2026:05:00:00] "GET /page/{n} HTTP/1.1" {200 + n % 3} {n}'
        for n in range(20_000)
    ]

    for _step in until_over():
        Counter(found[5] for line in lines if (found := PATTERN.match(line)))
