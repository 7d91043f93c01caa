"""A handler on the event loop asks that loop for a value, as a thread would, and waits for the answer.

As in empicano/aiomqtt issue 174."""

from __future__ import annotations

RULE, CAUSE = "hang", "event loop"
LINE = "read_value"
TWIN, ENDS = True, -9
LIMITS = {"hang.least_s": 3}

if __name__ == "__main__":
    import asyncio

    from loop import FIXED, end_later

    async def fetch(number: int) -> int:
        await asyncio.sleep(0.005)
        return number * 2

    def read_value(number: int, loop: asyncio.AbstractEventLoop) -> int:
        return asyncio.run_coroutine_threadsafe(fetch(number), loop).result()

    async def on_message(number: int) -> int:
        loop = asyncio.get_running_loop()
        if FIXED:
            return await loop.run_in_executor(None, read_value, number, loop)
        return read_value(number, loop)

    async def serve() -> None:
        number = 0
        while True:
            number += 1
            await (fetch(number) if number < 200 else on_message(number))

    end_later()
    asyncio.run(serve())
