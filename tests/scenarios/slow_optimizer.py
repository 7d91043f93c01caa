"""Adam, one after the other through sixty parameters, on a batch of nearly nothing."""

from __future__ import annotations

RULE, CAUSE = "optimizer_loop", None

if __name__ == "__main__":
    import torch
    from loop import until_over
    from torch_loop import WIDTH, make_model

    model = make_model(depth=30)
    optimizer = torch.optim.Adam(model.parameters(), 0.0001)
    batch = torch.ones(2, WIDTH)
    for _step in until_over():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
