"""A loop whose history is searched at each step: once it has filled up, halfway, each step sorts it
again, as metric trackers with a full window do."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "step_change", "steps take", "add_to_history", True
ALSO = ("python_bound",)

if __name__ == "__main__":
    import time

    import torch
    from loop import FIXED, SECONDS, burn
    from torch_loop import Examples, load, train

    begun_s = time.monotonic()

    def add_to_history(_loss: torch.Tensor) -> None:
        burn(0.02)

    def track(_step: int, loss: torch.Tensor) -> None:
        if not FIXED and time.monotonic() - begun_s > SECONDS / 2:
            add_to_history(loss)

    train(load(Examples(lambda _index: None)), track)
