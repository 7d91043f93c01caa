"""Tasks share a dictionary under a lock, and one of them asks a server while it has the lock.

As in reports of clients of aiohttp that send one request at a time: the lock is around the request."""

from __future__ import annotations

RULE, CAUSE = "places", "stand in line"
LINE = "get"
TWIN = True

if __name__ == "__main__":
    import asyncio

    from loop import FIXED, until_over

    async def ask(_key: int) -> bytes:
        await asyncio.sleep(0.02)  # a server
        return b"answer"

    class Client:
        def __init__(self) -> None:
            self.lock, self.known = asyncio.Lock(), dict[int, bytes]()

        async def get(self, key: int) -> bytes:
            if FIXED:
                found = await ask(key)
                async with self.lock:
                    self.known[key % 1000] = found
                return found
            async with self.lock:
                found = self.known[key % 1000] = await ask(key)
            return found

    async def work(client: Client) -> None:
        for step in until_over():
            await client.get(step)

    async def main() -> None:
        client = Client()
        await asyncio.gather(*(work(client) for _ in range(20)))

    asyncio.run(main())
