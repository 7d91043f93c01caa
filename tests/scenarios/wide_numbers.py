"""Features of numpy are float64, and so the model was made float64: it is only mentioned, for some
results need so many digits."""

from __future__ import annotations

RULE, CAUSE = "float64_model", "float64"
LINE = "train"
TWIN = True

if __name__ == "__main__":
    import numpy
    import torch
    from loop import FIXED, until_over
    from torch import nn
    from torch_loop import make_model

    kind = numpy.float32 if FIXED else numpy.float64

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    model = make_model() if FIXED else make_model().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    features = numpy.random.default_rng(0)
    for _step in until_over():
        train(model, optimizer, torch.from_numpy(features.standard_normal((64, 512)).astype(kind)))
