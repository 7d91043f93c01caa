"""A model that was made for a GPU is asked on a processor in half precision, for which it has no fast code.

As in huggingface/transformers issue 34692 and pytorch/pytorch issue 59177."""

from __future__ import annotations

RULE, CAUSE = "half_on_cpu", "half precision"
LINE = "forward"
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn

    torch.set_num_threads(1)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(512, 2048), nn.Linear(2048, 512)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens + self.second(torch.relu(self.first(tokens)))

    kind = torch.float32 if FIXED else torch.float16
    model = nn.Sequential(*(Encoder() for _layer in range(4))).to(kind).eval()

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(tokens.to(kind)).mean(0)

    for _step in until_over():
        embed(torch.randn(64, 512))
