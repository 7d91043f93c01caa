"""Failures are remembered as exceptions, each of which keeps the variables of all functions it passed.

As in quora/asynq pull request 168 and python/mypy issue 4807."""

from __future__ import annotations

RULE, CAUSE = "memory_creep", "allocates what stays"
LINE = "parse"
TWIN = True
OPTIONS, LIMITS = {"source.heap": "on"}, {"memory_creep.grown_bytes": 3e7}
ALSO = ("gc_pauses",)

if __name__ == "__main__":
    import time

    from loop import FIXED, until_over

    failures: dict[int, Exception] = {}

    def check(rows: list[str], number: int) -> None:
        if len(rows) > number % 2:
            raise ValueError(f"page {number} has too many rows")

    def parse(number: int) -> None:
        rows = [f"row {row} of page {number}" for row in range(2000)]
        check(rows, number)

    def import_page(number: int) -> None:
        try:
            parse(number)
        except ValueError as problem:
            failures[number] = problem.with_traceback(None) if FIXED else problem

    for step in until_over():
        import_page(step)
        time.sleep(0.01)
