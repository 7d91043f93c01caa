"""A report awaits the price of each item in turn, though none needs the other.

As in the questions on Stack Overflow why asyncio is no faster than plain calls: `await` in a loop."""

from __future__ import annotations

RULE, CAUSE = "places", "one task at a time"
LINE = "fetch_price"
TWIN = True

if __name__ == "__main__":
    import asyncio

    from loop import FIXED, until_over

    async def fetch_price(item: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"%d\n" % item)
        answer = await reader.readline()
        writer.close()
        return int(answer)

    async def add_up(items: range) -> int:
        if FIXED:
            return sum(await asyncio.gather(*(fetch_price(item) for item in items)))
        total = 0
        for item in items:
            total += await fetch_price(item)
        return total

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        await asyncio.sleep(0.03)
        writer.write(line)
        writer.close()

    async def main() -> None:
        global port
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for step in until_over():
            await add_up(range(10 * step, 10 * step + 10))
        server.close()

    asyncio.run(main())
