"""A loop waits for a result with sleeps of no time.

As in cecli issue 303 and avito-tech/aqueduct pull request 13."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "sleeps for no time"
LINE = "wait_until"
TWIN = True

if __name__ == "__main__":
    import threading
    import time

    from loop import FIXED, until_over

    result: list[int] = []
    ready = threading.Event()

    def compute() -> None:
        for _step in until_over():
            time.sleep(0.05)
        result.append(1)
        ready.set()

    def wait_until() -> int:
        while not result:
            ready.wait(1) if FIXED else time.sleep(0)
        return result[0]

    threading.Thread(target=compute).start()
    wait_until()
