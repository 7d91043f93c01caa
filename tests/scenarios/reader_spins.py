"""A callback of the event loop looks at a socket without reading it, and is called again at once, for ever.

As in python/cpython issue 156344 and slint-ui/slint pull request 12964."""

from __future__ import annotations

RULE, CAUSE = "spinning_loop", "round and round"
LINE = "on_data"
TWIN = True

if __name__ == "__main__":
    import asyncio
    import socket

    from loop import FIXED, SECONDS

    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    class Device:
        def __init__(self) -> None:
            self.wanted = False
            self.seen = 0

        def on_data(self) -> None:
            if self.wanted or FIXED:
                self.seen += len(ours.recv(1000))

    async def serve() -> None:
        device = Device()
        asyncio.get_running_loop().add_reader(ours, device.on_data)
        for _second in range(int(SECONDS)):
            theirs.send(b"temperature 20\n")
            await asyncio.sleep(1)

    asyncio.run(serve())
