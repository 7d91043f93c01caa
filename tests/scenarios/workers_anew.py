"""Workers that are forked anew for each of many short epochs, and rest for most of their lives.

After https://github.com/pytorch/pytorch/issues/15849: each epoch begins by starting all workers."""

from __future__ import annotations

RULE, CAUSE, PIECE_S = "input_bound", "started anew", 3.0

if __name__ == "__main__":
    from torch_loop import Examples, load, train

    train(load(Examples(lambda _index: None, 16), num_workers=2))
