"""A thread sleeps between two looks into its queue; each request waits for the end of a sleep.

As in cecli issue 303."""

from __future__ import annotations

RULE, CAUSE = "sleeping_helper", "asleep"
LINE = "work"
TWIN = True

if __name__ == "__main__":
    import queue
    import threading
    import time

    from loop import FIXED, until_over

    asked: queue.Queue[int] = queue.Queue()
    answers: queue.Queue[int] = queue.Queue()

    def look() -> int | None:
        if FIXED:
            return asked.get()
        try:
            return asked.get_nowait()
        except queue.Empty:
            return None

    def work() -> None:
        while True:
            item = look()
            if item is None:
                time.sleep(0.1)
            else:
                answers.put(sum(range(item % 5000)))

    threading.Thread(target=work, daemon=True).start()
    for step in until_over():
        asked.put(step)
        answers.get()
