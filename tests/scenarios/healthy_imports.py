"""A script whose imports take seconds and make the garbage collector work, and which then computes: nothing is
wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import torch
    import torch._dynamo
    import torch.distributed.tensor  # noqa: F401
    from loop import burn, until_over

    for _step in until_over():
        burn(0.01)
