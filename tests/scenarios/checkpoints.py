"""A checkpoint every 20 steps, written by the loop itself, that takes as long as 8 steps."""

from __future__ import annotations

RULE, CAUSE = "periodic_outliers", "20 steps"

if __name__ == "__main__":
    import torch
    from loop import burn
    from torch_loop import Examples, load, train

    def save_checkpoint() -> None:
        burn(0.15)

    def after(step: int, _loss: torch.Tensor) -> None:
        if step % 20 == 19:
            save_checkpoint()

    train(load(Examples(lambda _index: None)), after)
