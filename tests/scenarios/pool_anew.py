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
        return sum(number * other % 7 for other in range(500))

    class Scorer:
        def score_batch(self, numbers: range) -> int:
            if FIXED:  # so little work needs no other process
                return sum(score(number) for number in numbers)
            with fork.Pool(2) as pool:
                return sum(pool.map(score, numbers, 16))

    scorer = Scorer()
    for step in until_over():
        scorer.score_batch(range(step, step + 64))
