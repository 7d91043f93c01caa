"""A loop that waits for its GPU after every step. There is no GPU: what `item` does here is a sleep
without the GIL, as waiting for one is, and the rows that say that one is in use are made by hand."""

from __future__ import annotations

RULE, CAUSE, GPU = "sync_points", None, True
ALSO = ("low_gpu", "room_to_grow", "gpu_free")  # what is seen of it

if __name__ == "__main__":
    import time
    from types import SimpleNamespace

    from torch_loop import Examples, load, pretend_gpu, train

    pretend_gpu(60)
    loss = SimpleNamespace(item=time.sleep)

    def log(_step: int, _loss: object) -> None:
        loss.item(0.015)

    train(load(Examples(lambda _index: None), pin_memory=False), log)
