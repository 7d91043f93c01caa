"""A report that asks a database a few long questions: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import sqlite3

    from loop import until_over

    shop = sqlite3.connect(":memory:")
    shop.execute("CREATE TABLE sale (day INTEGER, price REAL)")
    shop.executemany(
        "INSERT INTO sale VALUES (?, ?)", ((i % 365, i * 0.5) for i in range(1_000_000))
    )

    def report(year: int) -> list[tuple[int, float]]:
        sql = "SELECT day, SUM(price) FROM sale WHERE day % 10 <> ? GROUP BY day ORDER BY 2"
        return shop.execute(sql, (year % 10,)).fetchall()

    for step in until_over():
        report(step)
