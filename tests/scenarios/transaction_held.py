"""A writer begins a transaction before it asks a service, and all others wait for the database meanwhile.

As in NovaSky-AI/SkyRL pull request 1105, which says why transactions should be short."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "another connection locks"
LINE = "save_order"
TWIN = True

if __name__ == "__main__":
    import os
    import sqlite3
    import tempfile
    import threading
    import time
    from pathlib import Path

    from loop import FIXED, SECONDS

    file = Path(tempfile.mkdtemp()) / "shop.db"
    with sqlite3.connect(file) as shop:
        shop.execute("PRAGMA journal_mode=WAL")  # or each statement waits for a slow disk as well
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT, paid INTEGER)")
    end = time.monotonic() + SECONDS

    def ask_bank() -> int:
        time.sleep(0.8)
        return 1

    def pay_orders() -> None:
        store = sqlite3.connect(file, timeout=30, isolation_level=None)
        while time.monotonic() < end:
            if FIXED:
                paid = ask_bank()
                store.execute("BEGIN IMMEDIATE")
            else:
                store.execute("BEGIN IMMEDIATE")
                paid = ask_bank()
            store.execute("UPDATE orders SET paid = ? WHERE id % 10 = 3", (paid,))
            store.execute("COMMIT")
            time.sleep(0.05)

    def save_order(store: sqlite3.Connection, text: str) -> None:
        store.execute("INSERT INTO orders (text, paid) VALUES (?, 0)", (text,))

    def take_orders() -> None:
        store = sqlite3.connect(file, timeout=30, isolation_level=None)
        store.execute("PRAGMA synchronous=OFF")
        while time.monotonic() < end:
            save_order(store, "three apples")
            time.sleep(0.02)

    payer = threading.Thread(target=pay_orders, name="payer", daemon=True)
    payer.start()
    take_orders()
    payer.join()
    os.unlink(file)
