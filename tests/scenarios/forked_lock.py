"""A child that is forked while a thread of its parent holds a lock, and then takes that lock.

After https://github.com/python/cpython/issues/50970: in the child nobody gives it back."""

from __future__ import annotations

RULE, CAUSE = "deadlock", "the only thread waits for a lock"
ENDS = -9
ALSO = ("hang",)  # of the parent, which waits for the child
LIMITS = {"deadlock.least_s": 2}

if __name__ == "__main__":
    import multiprocessing
    import os
    import threading
    import time

    from loop import SECONDS

    lock = threading.Lock()

    def hold() -> None:
        with lock:
            time.sleep(SECONDS)
        for process in [*multiprocessing.active_children(), multiprocessing.current_process()]:
            os.kill(process.pid, 9)

    def log() -> None:
        with lock:
            print("never")

    threading.Thread(target=hold, daemon=True).start()
    time.sleep(0.2)
    child = multiprocessing.get_context("fork").Process(target=log)
    child.start()
    child.join()
