"""`loss.item()` after every step, on the CPU: it costs nothing there, so nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    from torch_loop import Examples, load, train

    seen: list[float] = []
    train(load(Examples(lambda _index: None)), lambda _step, loss: seen.append(loss.item()))
