"""A loop that evaluates on all validation data after every few steps, as with `eval_steps=10` left
from an experiment; the twin evaluates at the end of an epoch."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "evaluation", "Evaluation takes", "evaluate", True
ALSO = ("periodic_outliers",)

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch_loop import WIDTH, make_model

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    batch = torch.ones(192, WIDTH)

    def evaluate() -> float:
        model.eval()
        whole = 0.0
        with torch.no_grad():
            for _ in range(20):
                whole += model(batch).mean().item()
        model.train()
        return whole

    for step in until_over():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % (400 if FIXED else 10) == 9:
            evaluate()
