"""A loop that counts words in Python after every step, longer than the model takes."""

from __future__ import annotations

RULE, CAUSE = "python_bound", None

if __name__ == "__main__":
    from loop import burn
    from torch_loop import Examples, load, train

    train(load(Examples(lambda _index: None)), lambda _step, _loss: burn(0.04))
