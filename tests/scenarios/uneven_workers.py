"""One of four workers has all the large files: the others wait for their turn."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "one worker"

if __name__ == "__main__":
    import time

    from torch_loop import Examples, load, train

    def read(index: int) -> None:
        time.sleep(0.03 if index // 8 % 4 == 0 else 0.0005)

    train(load(Examples(read), num_workers=4))
