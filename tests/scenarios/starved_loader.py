"""The loop loads its data itself, and that takes as long as the model."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "no workers"

if __name__ == "__main__":
    from loop import burn
    from torch_loop import Examples, load, train

    train(load(Examples(lambda _index: burn(0.003))))
