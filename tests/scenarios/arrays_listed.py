"""A batch is made from a list of arrays, whose numbers torch takes one by one.

As in kan-bayashi/ParallelWaveGAN issue 367 and facebook/Ax pull request 4798."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "torch.tensor"
LINE = "collate"
TWIN = True

if __name__ == "__main__":
    import numpy as np
    import torch
    from loop import FIXED, until_over
    from torch import nn
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    sounds = [rng.random(2000).astype(np.float32) for _sound in range(640)]

    def collate(batch: list[np.ndarray]) -> torch.Tensor:
        return torch.tensor(np.array(batch) if FIXED else batch)

    model = nn.Sequential(nn.Linear(2000, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train_epoch(loader: DataLoader) -> None:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    loader = DataLoader(sounds, batch_size=32, collate_fn=collate)
    for _epoch in until_over():
        train_epoch(loader)
