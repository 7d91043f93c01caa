"""A loop that has all objects looked at after every fourth step, to save memory."""

from __future__ import annotations

RULE, CAUSE = "gc_pauses", None

if __name__ == "__main__":
    import gc

    from torch_loop import Examples, load, train

    kept = [{"index": index, "parts": [index]} for index in range(50_000)]
    train(load(Examples(lambda _index: None)), lambda step, _loss: step % 4 or gc.collect())
