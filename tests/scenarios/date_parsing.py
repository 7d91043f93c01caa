"""Each line of a log has its time parsed by strptime.

As in mozilla/addons issue 9000 and tardis-dev/tardis-python pull request 10."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Parsing dates"
LINE = "parse"
TWIN = True

if __name__ == "__main__":
    from datetime import datetime

    from loop import FIXED, until_over

    def parse(text: str) -> datetime:
        return (
            datetime.fromisoformat(text) if FIXED else datetime.strptime(text, "%Y-%m-%dT%H:%M:%S")
        )

    def read(lines: list[str]) -> dict[str, list[datetime]]:
        found: dict[str, list[datetime]] = {}
        for line in lines:
            time, user, _rest = line.split(",", 2)
            found.setdefault(user, []).append(parse(time))
        return found

    lines = [
        f"2026-01-{day % 28 + 1:02}T12:00:{day % 60:02},user {day % 9},ok,200"
        for day in range(5000)
    ]
    for _step in until_over():
        read(lines)
