"""A reader of logs that uses regular expressions as they are meant: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import re

    from loop import until_over

    LINE = re.compile(r"(\S+) (\S+) \[([^\]]+)\] \"(\w+) (\S+)\" (\d+) (\d+)")
    lines = [f'10.0.0.{n % 250} ann [12/Jan:{n}] "GET /page/{n}" 200 {n}' for n in range(2000)]

    def read(line: str) -> tuple[str, int]:
        found = LINE.match(line)
        assert found is not None
        return found[5], int(found[7])

    for _step in until_over():
        sizes: dict[str, int] = {}
        for line in lines:
            page, size = read(line)
            sizes[page] = sizes.get(page, 0) + size
