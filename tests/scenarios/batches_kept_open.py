"""What workers send is collected in a list, and every batch of it is an open file.

As in pytorch/pytorch issues 11201 and 973."""

from __future__ import annotations

RULE, CAUSE = "handles_creep", "open files"
LINE = "explain"
TWIN = True
ALSO, LIMITS = ("memory_creep",), {"handles_creep.parts": 4}

if __name__ == "__main__":
    import os
    import resource

    import torch
    from loop import FIXED, until_over
    from torch import nn
    from torch_loop import Examples, load

    torch.set_num_threads(1)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    inputs: list[torch.Tensor] = []

    def predict(batch: torch.Tensor) -> torch.Tensor:
        inputs.append(batch.clone() if FIXED else batch)
        with torch.no_grad():
            return model(batch.repeat(100, 1)).argmax(1)

    def explain(loader: torch.utils.data.DataLoader) -> None:
        for _step, batch in zip(until_over(), loader, strict=False):
            predict(batch)

    explain(load(Examples(lambda _index: None), num_workers=1))
    os._exit(0)
