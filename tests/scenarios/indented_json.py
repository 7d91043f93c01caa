"""Answers are written with an indent, which the fast encoder of Python's json cannot do before 3.15.

As in joestump/django-ajax pull request 23 and simplejson/simplejson issue 72."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "slow encoder"
LINE = "write_answer"
TWIN = True

if __name__ == "__main__":
    import json

    from loop import FIXED, until_over

    rows = [
        {"id": row, "name": f"name {row}", "price": row / 7, "tags": ["a", "b"]}
        for row in range(2000)
    ]

    def write_answer(answer: dict[str, object]) -> str:
        return json.dumps(answer) if FIXED else json.dumps(answer, indent=2)

    def serve(page: int) -> int:
        chosen = [row for row in rows if row["id"] % 4 == page % 4]
        return len(write_answer({"page": page, "rows": chosen}))

    for step in until_over():
        serve(step)
