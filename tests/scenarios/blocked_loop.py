"""A service on an event loop whose handler makes one call that is not asynchronous.

As in fastapi/fastapi#2484: a call that waits, inside of `async def`. Here it is a read from a
socket whose other end takes its time."""

from __future__ import annotations

RULE, CAUSE = "loop_blocked", "handle waits"


def serve(blocks: bool) -> None:
    """Answer eight clients, each answer after one question to a slow neighbour."""
    import asyncio
    import socket
    import threading
    import time

    from loop import SECONDS

    def answer(far: socket.socket) -> None:
        while far.recv(1):
            time.sleep(0.08)
            far.send(b"x")

    async def handle(near: socket.socket) -> None:
        if blocks:
            near.sendall(b"?")
            near.recv(1)
        else:
            await asyncio.get_running_loop().sock_sendall(near, b"?")
            await asyncio.get_running_loop().sock_recv(near, 1)

    async def visit(end: float) -> None:
        near, far = socket.socketpair()
        near.setblocking(blocks)
        threading.Thread(target=answer, args=(far,), daemon=True).start()
        while time.monotonic() < end:
            for _ in range(10):
                await asyncio.sleep(0.01)
            await asyncio.create_task(handle(near))
        near.close()

    async def main() -> None:
        end = time.monotonic() + SECONDS
        await asyncio.gather(*(visit(end) for _client in range(8)))

    asyncio.run(main())


if __name__ == "__main__":
    serve(blocks=True)
