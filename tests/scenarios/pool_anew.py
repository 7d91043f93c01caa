"""A pool of processes is made and ended for each batch.

As in marxin/cvise pull request 297 and fatiando/fatiando issue 182."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "Processes are started and ended again and again"
LINE = "Scorer."
TWIN = True

if __name__ == "__main__":
    from multiprocessing import get_context

    from loop import FIXED, until_over

    fork = get_context("fork")

    def score(number: int) -> int:
        return sum(number * other % 7 for other in range(4000))

    class Scorer:
        def __init__(self) -> None:
            self.pool = fork.Pool(2) if FIXED else None

        def score_batch(self, numbers: range) -> int:
            if self.pool is not None:
                return sum(self.pool.map(score, numbers, 16))
            with fork.Pool(2) as pool:
                return sum(pool.map(score, numbers, 16))

    scorer = Scorer()
    for step in until_over():
        scorer.score_batch(range(step, step + 64))
    if scorer.pool is not None:
        scorer.pool.terminate()
