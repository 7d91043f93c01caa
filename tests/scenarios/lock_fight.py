"""Four threads that write to one file behind one lock."""

from __future__ import annotations

RULE, CAUSE = "lock_fight", None

if __name__ == "__main__":
    import threading
    import time

    from loop import until_over

    lock = threading.Lock()

    def work() -> None:
        for _step in until_over():
            with lock:
                time.sleep(0.004)  # a write that takes its time

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
