"""Workers that load in bursts, with one batch ahead: they rest while the loop waits."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "prefetch"

if __name__ == "__main__":
    import time

    from torch_loop import Examples, load, train

    def read(index: int) -> None:
        if index % 72 == 0:  # one batch in 9, so that it is now one worker's, now the other's
            time.sleep(0.4)

    train(load(Examples(read), num_workers=2, prefetch_factor=1))
