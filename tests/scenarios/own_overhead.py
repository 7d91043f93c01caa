"""Recording without a budget, of a model that is nothing but calls of modules."""

from __future__ import annotations

RULE, CAUSE, OPTIONS = "own_overhead", None, {"torch.budget_pct": "0"}

if __name__ == "__main__":
    import torch
    from loop import until_over
    from torch import nn

    model = nn.Sequential(*(nn.Identity() for _ in range(400)), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.001, fused=True)
    batch = torch.ones(4, 8)
    for _step in until_over():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
