"""A loop that keeps what it has computed."""

from __future__ import annotations

RULE, CAUSE = "memory_creep", None

if __name__ == "__main__":
    import torch
    from torch_loop import Examples, load, train

    kept: list[torch.Tensor] = []
    train(
        load(Examples(lambda _index: None)), lambda _step, _loss: kept.append(torch.ones(500_000))
    )
