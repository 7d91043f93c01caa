"""A training loop calls the model for each example of a batch, and adds up the losses.

As whoever has written the loss for one example first."""

from __future__ import annotations

RULE, CAUSE = "single_examples", "many times"
LINE = "find_loss"
ALSO = ("python_bound", "input_bound", "evaluation", "forward_only", "small_batches")
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn

    torch.set_num_threads(1)

    def find_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if FIXED:
            return model(batch).square().mean()
        return torch.stack([model(example).square().mean() for example in batch]).mean()

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _step in until_over():
        loss = find_loss(model, torch.randn(128 * (8 if FIXED else 1), 64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
