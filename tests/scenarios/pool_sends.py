"""A pool of processes is given a method of a large object: the object is pickled for each task.

As in many a question about `Pool.map(self.method, items)` that is slower than a loop."""

from __future__ import annotations

RULE, CAUSE = "pool_overhead", "is large"
LINE = "score_all"
TWIN = True

if __name__ == "__main__":
    import multiprocessing
    from collections.abc import Iterable
    from multiprocessing.pool import Pool

    from loop import FIXED, until_over

    class Scorer:
        def __init__(self) -> None:
            self.table = {key: (key, str(key), key / 2) for key in range(20000)}

        def score(self, key: int) -> float:
            return self.table[key][2] + sum(range(2000))

    scorer = Scorer()

    def score(key: int) -> float:
        return scorer.score(key)

    def score_many(keys: Iterable[int]) -> float:
        return sum(score(key) for _ in range(500) for key in keys)

    def score_all(pool: Pool, keys: range) -> float:
        if FIXED:
            return sum(pool.imap(score_many, (keys[at::4] for at in range(4))))
        return sum(pool.imap(scorer.score, keys))

    with multiprocessing.get_context("fork").Pool(2) as pool:
        for _step in until_over():
            score_all(pool, range(40))
