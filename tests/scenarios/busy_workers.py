"""As many workers as processors, and each needs all of one."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "CPU"

if __name__ == "__main__":
    from loop import burn, use_cores
    from torch_loop import Examples, load, train

    use_cores(2)
    train(load(Examples(lambda _index: burn(0.012)), num_workers=2))
