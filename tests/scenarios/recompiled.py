"""Sentences of every length, and a model that torch.compile compiles for each length anew
(pytorch/pytorch issue 105279). The twin pads them to one length."""

from __future__ import annotations

RULE, CAUSE, LINE, TWIN = "recompilation", "again and again", "forward_batch", True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch_loop import make_model

    torch._dynamo.config.recompile_limit = 10**6
    torch._dynamo.config.accumulated_recompile_limit = 10**6
    network = make_model(256, 3)
    model = torch.compile(network, dynamic=False, backend="aot_eager")
    optimizer = torch.optim.SGD(network.parameters(), 0.001)

    def make_batch(step: int) -> torch.Tensor:
        words = torch.randn(4000 + step % 1000, 256)
        return torch.nn.functional.pad(words, (0, 0, 0, 5000 - len(words))) if FIXED else words

    def forward_batch(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    for step in until_over():
        optimizer.zero_grad()
        forward_batch(make_batch(step)).backward()
        optimizer.step()
