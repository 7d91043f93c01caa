"""One thread sorts a large list in a single call; those that serve others wait for the GIL.

As in hermes-agent issue 72707."""

from __future__ import annotations

RULE, CAUSE = "gil_bound", "One call keeps the GIL"
LINE = "rank"
TWIN = True

if __name__ == "__main__":
    import random
    import threading
    import time

    from loop import FIXED, until_over

    values = [random.random() for _ in range(300_000)]

    def rank() -> list[float]:
        return sorted(values)

    def beat() -> None:
        for _step in until_over():
            time.sleep(0.005)

    for _ in range(2):
        threading.Thread(target=beat, daemon=True).start()
    for _step in until_over():
        if FIXED:
            time.sleep(0.2)
        else:
            rank()
