"""The thread that empties a queue ends with an exception, and the program fills the queue and waits for ever.

As in tilezen/tilequeue issue 131 and python/cpython issue 77259."""

from __future__ import annotations

RULE, CAUSE = "hang", "room in a queue"
LINE = "add_row"
TWIN, ENDS = True, -9
LIMITS = {"hang.least_s": 3}

if __name__ == "__main__":
    import queue
    import threading
    import time

    from loop import FIXED, burn, end_later

    rows: queue.Queue[dict[str, int]] = queue.Queue(maxsize=50)

    def store_row(row: dict[str, int]) -> None:
        burn(0.002)
        if row["id"] == 300 and not FIXED:
            raise KeyError("price")

    def store_rows() -> None:
        while True:
            store_row(rows.get())

    def add_row(row: dict[str, int]) -> None:
        rows.put(row)

    def read_file() -> None:
        number = 0
        while True:
            number += 1
            add_row({"id": number})
            time.sleep(0.005)

    threading.excepthook = lambda _args: None
    threading.Thread(target=store_rows, daemon=True, name="store").start()
    end_later()
    read_file()
