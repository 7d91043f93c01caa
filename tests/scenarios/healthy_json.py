"""A pipeline that reads JSON, changes it and writes it: that is what it is for."""

from __future__ import annotations

RULE = CAUSE = None
ALSO = ("costly_calls",)

if __name__ == "__main__":
    import json

    from loop import until_over

    text = json.dumps([{"id": n, "tags": ["a", "b"], "price": n * 0.5} for n in range(500)])

    def convert(text: str) -> str:
        rows = json.loads(text)
        for row in rows:
            row["price"] = round(row["price"] * 1.19, 2)
        return json.dumps(rows)

    for _step in until_over():
        convert(text)
