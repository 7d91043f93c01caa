"""A pool is asked for one result after the other, so that one of its threads does all of the work.

As in psutil pull request 1037."""

from __future__ import annotations

RULE, CAUSE = "narrow_pool", "one thread"
LINE = "fetch_all"
TWIN = True

if __name__ == "__main__":
    import socket
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    from loop import FIXED, until_over

    def answer(one: socket.socket) -> None:
        while one.recv(1):
            time.sleep(0.05)
            one.send(b".")

    def fetch(_item: int) -> bytes:
        mine, other = socket.socketpair()
        threading.Thread(target=answer, args=(other,), daemon=True).start()
        with mine:
            mine.send(b"?")
            return mine.recv(1)

    def fetch_all(pool: ThreadPoolExecutor) -> list[bytes]:
        if FIXED:
            return list(pool.map(fetch, range(20)))
        return [pool.submit(fetch, item).result() for item in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for _step in until_over():
            fetch_all(pool)
