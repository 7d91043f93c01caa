"""A program that computes in Python, on one thread, beside one that sleeps: nothing is wrong."""

from __future__ import annotations

import threading

RULE = CAUSE = None

if __name__ == "__main__":
    from loop import burn, until_over

    over = threading.Event()
    threading.Thread(target=over.wait).start()
    for _step in until_over():
        burn(0.01)
    over.set()
