"""Twenty connections on one event loop, each with a little to do now and then."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import asyncio
    import time

    from loop import SECONDS

    async def serve(end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(0.05)
            sum(range(3000))

    async def main() -> None:
        end = time.monotonic() + SECONDS
        await asyncio.gather(*(serve(end) for _ in range(20)))

    asyncio.run(main())
