"""A serving loop in the manner of vLLM: requests join and leave a batch between two steps.

Its phases have names, so that `sonde events` says which of them the time goes to:

    sonde run examples/serve.py
    sonde events serve.py
"""

import asyncio
import random
import time

import sonde


class Request:
    def __init__(self, prompt: int, tokens: int) -> None:
        self.prompt, self.left = prompt, tokens
        self.done = asyncio.get_running_loop().create_future()


async def serve(queue: asyncio.Queue[Request], most: int = 8) -> None:
    """Run steps for as long as there are requests: this is the loop that must never wait."""
    batch: list[Request] = []
    while True:
        if not batch:
            batch.append(await queue.get())
        with sonde.span("step", batch=len(batch)):
            with sonde.span("schedule"):
                joined = [queue.get_nowait() for _ in range(min(most - len(batch), queue.qsize()))]
            with sonde.span("prefill", tokens=sum(one.prompt for one in joined)):
                time.sleep(0.00001 * sum(one.prompt for one in joined))  # the model's forward
            batch += joined
            with sonde.span("decode"):
                time.sleep(0.004 + 0.0002 * len(batch))
            with sonde.span("detokenize"):
                for one in batch:
                    one.left -= 1
                    if one.left == 0:
                        one.done.set_result(None)
                batch = [one for one in batch if one.left]
        sonde.counter("batch", len(batch))
        sonde.counter("queue", queue.qsize())
        await asyncio.sleep(0)  # let requests come in


async def ask(queue: asyncio.Queue[Request]) -> None:
    request = Request(random.randrange(100, 2000), random.randrange(5, 40))
    with sonde.span("request", prompt=request.prompt, tokens=request.left):
        await queue.put(request)
        await request.done


async def main(requests: int = 60) -> None:
    random.seed(0)
    queue: asyncio.Queue[Request] = asyncio.Queue()
    server = asyncio.create_task(serve(queue))
    clients = []
    for _ in range(requests):
        clients.append(asyncio.create_task(ask(queue)))
        await asyncio.sleep(random.expovariate(30))
    await asyncio.gather(*clients)
    server.cancel()


if __name__ == "__main__":
    asyncio.run(main())
