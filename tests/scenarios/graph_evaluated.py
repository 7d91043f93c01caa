"""A loop that looks at its validation data after every tenth step, and builds the graph for it each
time: `torch.no_grad()` is missing, as in the questions on PyTorch's forum why validation needs more
memory than training (discuss.pytorch.org, "CUDA out of memory during validation"). The twin
evaluates seldom, without gradients."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "forward_only", "no backward pass uses", "evaluate", True
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
        whole = sum(model(batch).mean().item() for _ in range(30))
        model.train()
        return whole

    for step in until_over():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if FIXED and step % 200 == 199:
            with torch.inference_mode():
                evaluate()
        elif not FIXED and step % 10 == 9:
            evaluate()
