"""A server has a thread for each request, and all of them hold one lock while they wait for a disk.

As in servers of http.server.ThreadingHTTPServer with one lock around everything."""

from __future__ import annotations

RULE, CAUSE = "lock_fight", "same lock"
LINE = "render"
TWIN = True

if __name__ == "__main__":
    import threading
    import time

    from loop import FIXED, burn, until_over

    lock = threading.Lock()

    def read() -> None:
        time.sleep(0.02)
        burn(0.0005)

    def render() -> None:
        if FIXED:
            read()
            return
        with lock:
            read()

    for _step in until_over():  # as many requests as the lock lets through
        threads = [threading.Thread(target=render) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
