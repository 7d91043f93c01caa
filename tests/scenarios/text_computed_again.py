"""A model makes texts token by token, and is given the whole text each time.

As a generation without a cache of keys and values."""

from __future__ import annotations

RULE, CAUSE = "growing_passes", "begin anew"
LINE = "write"
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn

    torch.set_num_threads(1)

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.state = nn.Embedding(200, 128), nn.GRU(128, 256, 2, batch_first=True)
            self.next = nn.Linear(256, 200)

        def forward(
            self, text: torch.Tensor, state: torch.Tensor | None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            found, state = self.state(self.words(text), state)
            return self.next(found[:, -1:]).argmax(-1), state

    @torch.no_grad()
    def write(model: Writer, text: torch.Tensor, tokens: int) -> torch.Tensor:
        state, seen = None, text
        for _ in range(tokens):
            token, known = model(seen, state)
            text = torch.cat([text, token], 1)
            state, seen = (known, token) if FIXED else (None, text)
        return text

    model = Writer().eval()
    for _step in until_over():
        write(model, torch.randint(0, 200, (4, 8)), 80)
