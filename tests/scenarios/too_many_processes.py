"""A pool of twelve processes that compute, on two processors: each stands in the queue for most of its time."""

from __future__ import annotations

RULE, CAUSE = "cpu_starved", "waits for a processor"

if __name__ == "__main__":
    import multiprocessing

    from loop import burn, until_over, use_cores

    def work(_number: int) -> None:
        for _step in until_over():
            burn(0.01)

    use_cores(2)
    with multiprocessing.get_context("fork").Pool(12) as pool:
        pool.map(work, range(12))
