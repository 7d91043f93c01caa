"""A loop whose history is searched at each step: once it has filled up, halfway, each step sorts it
again, as metric trackers with a full window do."""

from __future__ import annotations

RULE, CAUSE, TWIN = "step_change", "steps take", True
ALSO = ("python_bound",)

if __name__ == "__main__":
    import time

    import torch
    from loop import FIXED, SECONDS, burn
    from torch_loop import Examples, load, train

    begun_s: list[float] = []  # with the first step: to import torch takes long on a busy machine

    def add_to_history(_loss: torch.Tensor) -> None:
        burn(0.03)

    def track(_step: int, loss: torch.Tensor) -> None:
        begun_s.append(time.monotonic())
        if not FIXED and begun_s[-1] - begun_s[0] > SECONDS / 2:
            add_to_history(loss)

    train(load(Examples(lambda _index: None)), track)
