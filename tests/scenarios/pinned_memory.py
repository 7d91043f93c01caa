"""Batches that are not pinned, and a copy to the GPU that takes its time; the GPU is made by hand,
and the copy is a sleep."""

from __future__ import annotations

RULE, CAUSE, GPU = "pinned_memory", None, True

if __name__ == "__main__":
    import time

    import torch
    from torch_loop import Examples, load, pretend_gpu, train

    pretend_gpu(93)

    class Batches:
        """Those of a loader, copied as the loop gets them."""

        def __iter__(self):
            for batch in load(Examples(lambda _index: None)):
                time.sleep(0.02)
                yield torch.as_tensor(batch)

    train(Batches())
