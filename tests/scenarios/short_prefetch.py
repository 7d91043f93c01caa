"""Workers that load in bursts, with one batch ahead: they rest while the loop waits."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "prefetch"

if __name__ == "__main__":
    import time

    from torch_loop import Examples, load, train

    def read(index: int) -> None:
        if index % 64 == 0:  # of 8 batches, one takes long
            time.sleep(0.25)

    train(load(Examples(read), num_workers=2, prefetch_factor=1))
