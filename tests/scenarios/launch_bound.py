"""A model of hundreds of tiny operators beside a GPU (made by hand) that has little to do."""

from __future__ import annotations

RULE, CAUSE, GPU = "launch_bound", None, True
ALSO = ("low_gpu", "room_to_grow", "gpu_free")  # what is seen of it

if __name__ == "__main__":
    import torch
    from loop import until_over
    from torch import nn
    from torch_loop import pretend_gpu

    pretend_gpu(35)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(200)))
    optimizer = torch.optim.SGD(model.parameters(), 0.001, fused=True)
    batch = torch.ones(4, 8)
    for _step in until_over():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
