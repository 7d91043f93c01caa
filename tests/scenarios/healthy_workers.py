"""A healthy training loop whose worker loads ahead in time."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    from loop import burn
    from torch_loop import Examples, load, train

    train(load(Examples(lambda _index: burn(0.0003)), num_workers=1, prefetch_factor=8))
