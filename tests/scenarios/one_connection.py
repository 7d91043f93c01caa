"""Eight threads answer requests with one connection to the database between them.

As in GSA/notifications-api issue 1530."""

from __future__ import annotations

RULE, CAUSE = "scarce_pool", "too few"
LINE = "acquire"
TWIN = True

if __name__ == "__main__":
    import queue
    import socket
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    from loop import FIXED, until_over

    def answer(one: socket.socket) -> None:
        while one.recv(1):
            time.sleep(0.02)
            one.send(b".")

    def connect() -> socket.socket:
        mine, other = socket.socketpair()
        threading.Thread(target=answer, args=(other,), daemon=True).start()
        return mine

    class Pool:
        def __init__(self, size: int) -> None:
            self.free: queue.Queue[socket.socket] = queue.Queue()
            for _ in range(size):
                self.free.put(connect())

        def acquire(self) -> socket.socket:
            return self.free.get()

    class Users:
        def __init__(self, pool: Pool) -> None:
            self.pool = pool

        def find(self, _number: int) -> bytes:
            one = self.pool.acquire()
            try:
                one.send(b"?")
                return one.recv(1)
            finally:
                self.pool.free.put(one)

    users = Users(Pool(8 if FIXED else 1))
    with ThreadPoolExecutor(8) as threads:
        for _step in until_over():
            list(threads.map(users.find, range(40)))
