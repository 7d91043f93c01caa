"""A consumer asks an empty queue for work, again and again.

As in StratosphereLinuxIPS issue 16 and alpaca-backtrader-api issue 129."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "asks again and again"
LINE = "consume"
TWIN = True

if __name__ == "__main__":
    import queue
    import threading
    import time

    from loop import FIXED, until_over

    jobs: queue.Queue[int] = queue.Queue()
    over = threading.Event()

    def produce() -> None:
        for step in until_over():
            time.sleep(0.1)
            jobs.put(step)
        over.set()

    def consume() -> int:
        done = 0
        while not over.is_set():
            try:
                done += jobs.get(timeout=0.2) if FIXED else jobs.get_nowait()
            except queue.Empty:
                continue
        return done

    threading.Thread(target=produce).start()
    consume()
