"""A program takes the number of threads from a larger machine.

As in many a question about OMP_NUM_THREADS in containers."""

from __future__ import annotations

RULE, CAUSE = "many_threads", "24 threads"
ALSO = ("cpu_starved", "own_overhead")
TWIN = True

if __name__ == "__main__":
    import torch
    from loop import FIXED, until_over, use_cores

    use_cores(2)
    torch.set_num_threads(1 if FIXED else 24)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _step in until_over():
        optimizer.zero_grad()
        model(torch.ones(512, 256)).square().mean().backward()
        optimizer.step()
