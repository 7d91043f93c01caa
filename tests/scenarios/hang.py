"""A loop that stops in the middle of a step: it waits for something that never comes."""

from __future__ import annotations

RULE, CAUSE, ENDS = "hang", None, -9
LIMITS = {"hang.least_s": 2, "hang.step_s": 2}

if __name__ == "__main__":
    import os
    import queue

    from loop import SECONDS
    from torch_loop import Examples, load, train

    never: queue.Queue[int] = queue.Queue()

    def fetch_result() -> None:
        try:
            never.get(timeout=SECONDS)
        except queue.Empty:
            os.kill(os.getpid(), 9)  # as somebody does in the end

    train(load(Examples(lambda _index: None)), lambda step, _loss: step == 60 and fetch_result())
