"""Rows are put into a database one by one, each in a transaction of its own, which the disk has to keep.

As in consbio/tpkutils issue 2 and rogerbinns/apsw issue 195."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Commits"
LINE = "add_tile"
TWIN = True

if __name__ == "__main__":
    import sqlite3
    import tempfile
    from pathlib import Path

    from loop import FIXED, until_over

    folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent, prefix=".tiles"))
    store = sqlite3.connect(folder / "tiles.db")
    store.execute("CREATE TABLE tile (x INTEGER, y INTEGER, picture BLOB)")

    def add_tile(x: int, y: int) -> None:
        store.execute("INSERT INTO tile VALUES (?, ?, ?)", (x, y, bytes(200)))
        store.commit()

    def draw(x: int) -> None:
        if FIXED:
            tiles = [(x, y, bytes(200)) for y in range(20_000)]
            store.executemany("INSERT INTO tile VALUES (?, ?, ?)", tiles)
        for y in range(0 if FIXED else 200):
            add_tile(x, y)
        store.commit()

    for step in until_over():
        draw(step)
    store.close()
    (folder / "tiles.db").unlink()
    folder.rmdir()
