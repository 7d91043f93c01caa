"""A metric joins all predictions so far in each step, so that each step takes longer than the last.

As in pytorch/torchrec pull request 1498."""

from __future__ import annotations

RULE, CAUSE = "slower_steps", "update"
LINE = "update"
TWIN = True
ALSO = ("python_bound", "step_change")

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch_loop import make_model

    torch.set_num_threads(1)

    class Accuracy:
        def __init__(self) -> None:
            self.found = torch.empty(0, 512)
            self.right, self.seen = 0.0, 0

        def update(self, found: torch.Tensor) -> float:
            if FIXED:
                self.right, self.seen = (
                    self.right + float((found > 0).sum()),
                    self.seen + len(found),
                )
                return self.right / self.seen
            self.found = torch.cat([self.found, found])
            return float((self.found > 0).float().mean())

    model, accuracy = make_model(), Accuracy()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def train_step() -> None:
        optimizer.zero_grad()
        found = model(torch.randn(64, 512))
        found.square().mean().backward()
        optimizer.step()
        accuracy.update(found.detach())

    for _step in until_over():
        train_step()
