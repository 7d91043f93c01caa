"""Each order asks for its customer.

As in mnemo-mcp pull request 217 and TryGhost/node-sqlite3 issue 437."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "SQL statement"
LINE = "find_customer"
TWIN = True

if __name__ == "__main__":
    import sqlite3

    from loop import FIXED, until_over

    shop = sqlite3.connect(":memory:")
    shop.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT)")
    shop.executemany(
        "INSERT INTO customer VALUES (?, ?)", ((i, f"customer {i}") for i in range(5000))
    )

    def find_customer(number: int) -> str:
        return shop.execute("SELECT name FROM customer WHERE id = ?", (number,)).fetchone()[0]

    def make_report(orders: range) -> list[str]:
        if FIXED:
            names = dict(shop.execute("SELECT id, name FROM customer").fetchall())
            return [names[order % 5000].title() for order in orders]
        return [find_customer(order % 5000).title() for order in orders]

    for _step in until_over():
        make_report(range(20_000))
