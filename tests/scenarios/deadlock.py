"""Two threads that take two locks, each in its own order, and then wait for each other for ever."""

from __future__ import annotations

RULE, CAUSE = "deadlock", None
ENDS = -9
LIMITS = {"deadlock.least_s": 2}

if __name__ == "__main__":
    import os
    import threading
    import time

    from loop import SECONDS

    first, second = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def work(mine: threading.Lock, other: threading.Lock) -> None:
        with mine:
            both.wait()
            with other:
                pass

    threads = [
        threading.Thread(target=work, args=pair) for pair in ((first, second), (second, first))
    ]

    if os.fork() == 0:  # another process ends it: a thread of its own would not stand still
        time.sleep(SECONDS)
        os.kill(os.getppid(), 9)
        os._exit(0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
