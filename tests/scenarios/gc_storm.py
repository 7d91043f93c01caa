"""A loop that keeps many objects alive and makes cycles: all of them are looked at again and again."""

from __future__ import annotations

RULE, CAUSE = "gc_pauses", None

if __name__ == "__main__":
    import gc

    from torch_loop import Examples, load, train

    kept = [{"index": index, "parts": [index]} for index in range(200_000)]
    gc.set_threshold(500, 3, 3)

    def make_cycles(_step: int, _loss: object) -> None:
        for _ in range(3000):
            one: list[object] = []
            one.append(one)

    train(load(Examples(lambda _index: None)), make_cycles)
