"""A sampler draws one example at a time from the weights of all of them.

As in ufoym/imbalanced-dataset-sampler issue 21."""

from __future__ import annotations

RULE, CAUSE = "input_bound", "sampler"
LINE = "draw"
TWIN = True

if __name__ == "__main__":
    from collections.abc import Iterator

    import torch
    from loop import FIXED
    from torch.utils.data import Sampler
    from torch_loop import Examples, load, train

    class Balanced(Sampler):
        """Examples that are rare come as often as the others."""

        def __init__(self, count: int) -> None:
            self.weights = torch.ones(count)

        def draw(self) -> int:
            return int(torch.multinomial(self.weights, 1))

        def __iter__(self) -> Iterator[int]:
            count = len(self.weights)
            if FIXED:
                yield from torch.multinomial(self.weights, count, replacement=True).tolist()
            else:
                yield from (self.draw() for _ in range(count))

    examples = Examples(lambda _index: None, 200_000)
    train(load(examples, sampler=Balanced(len(examples))))
