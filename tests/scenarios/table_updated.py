"""A large embedding table of which each batch has a few rows, and Adam updates all of it.

As in recommenders, and wherever users or words have rows of their own."""

from __future__ import annotations

RULE, CAUSE = "dense_embedding", "embedding table"
LINE = "learn"
ALSO = ("optimizer_loop", "small_batches")
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over
    from torch import nn

    torch.set_num_threads(1)

    def learn(users: nn.Embedding, optimizer: torch.optim.Optimizer) -> None:
        loss = users(torch.randint(0, 200_000, (256,))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    users = nn.Embedding(200_000, 16, sparse=FIXED)
    kind = torch.optim.SparseAdam if FIXED else torch.optim.Adam
    optimizer = kind(users.parameters(), 0.001)
    for _step in until_over():
        learn(users, optimizer)
