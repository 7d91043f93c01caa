"""asyncio's debug mode was left on: it keeps a stack for each task and each callback.

As in questions about asyncio programs that became ten times slower with PYTHONASYNCIODEBUG."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "debug mode"
TWIN = True

if __name__ == "__main__":
    import asyncio
    import logging

    from loop import FIXED, until_over

    async def read(text: str) -> int:
        await asyncio.sleep(0)
        return sum(map(int, text.split(",")))

    async def burst(texts: list[str]) -> int:
        return sum(await asyncio.gather(*[read(text) for text in texts]))

    async def main() -> None:
        texts = [",".join(str(n * k) for k in range(200)) for n in range(60)]
        for _ in until_over():
            await burst(texts)

    logging.disable()  # of slow callbacks
    asyncio.run(main(), debug=not FIXED)
