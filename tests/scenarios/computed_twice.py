"""Activation checkpointing in a small model, all of which would fit into memory.

As where the option was taken over from a larger model."""

from __future__ import annotations

RULE, CAUSE = "recomputed", "checkpointing"
LINE = "forward"
ALSO = ("python_bound",)
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    torch.set_num_threads(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(
                nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(4)
            )

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                batch = part(batch) if FIXED else checkpoint(part, batch, use_reentrant=False)
            return batch

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _step in until_over():
        loss = model(torch.randn(512, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
