"""A recurrent network carries its state over without detaching it: each backward pass goes back to
the first step.

As whoever follows torch's error to the letter, which says to specify retain_graph=True."""

from __future__ import annotations

RULE, CAUSE = "slower_steps", "backward pass"
LINE = "train"
ALSO = ("memory_creep", "python_bound", "long_backward")  # all graphs are kept
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn

    torch.set_num_threads(1)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRUCell(64, 128), nn.Linear(128, 8)

        def forward(
            self, batch: torch.Tensor, state: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            state = self.cell(batch, state)
            return self.out(state), state

    def train(net: Tagger, state: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        found, state = net(torch.randn(16, 64), state)
        found.square().mean().backward(retain_graph=not FIXED)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.data -= 1e-3 * parameter.grad
        return state.detach() if FIXED else state

    net, state = Tagger(), torch.zeros(16, 128)
    for _step in until_over():
        state = train(net, state)
