"""A process hands numbers to another one, one by one.

As actors that send each step of a game to a learner."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "single items"
LINE = "gather"
ALSO = ("full_queue",)
TWIN = True

if __name__ == "__main__":
    import multiprocessing
    from collections.abc import Iterator
    from typing import Any

    from loop import FIXED, burn, until_over

    def play(queue: Any) -> None:
        while True:
            steps = [{"reward": 1.0, "action": 3} for _ in range(500)]
            for step in [steps] if FIXED else steps:
                queue.put(step)

    def gather(queue: Any) -> Iterator[dict[str, float]]:
        if FIXED:
            yield from queue.get()
        else:
            for _ in range(500):
                yield queue.get()

    fork = multiprocessing.get_context("fork")
    queue = fork.Queue(1000)
    player = fork.Process(target=play, args=(queue,), daemon=True)
    player.start()
    for _step in until_over():
        sum(step["reward"] for step in gather(queue))
        burn(0.001)
    player.terminate()
    player.join()
