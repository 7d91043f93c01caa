"""Four threads that compute in Python: one runs at a time."""

from __future__ import annotations

RULE, CAUSE = "gil_bound", None

if __name__ == "__main__":
    import threading

    from loop import burn, until_over

    def work() -> None:
        for _step in until_over():
            burn(0.01)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
