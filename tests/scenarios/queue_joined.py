"""A program waits for the end of its workers before it takes their results from the queue.

As in python/cpython issue 73983 and jonatanjacobsson/ifcpipeline pull request 28."""

from __future__ import annotations

RULE, CAUSE = "hang", "take the items of its queue"
LINE = "collect"
TWIN, ENDS = True, -9
LIMITS = {"hang.least_s": 3}

if __name__ == "__main__":
    import multiprocessing
    import time

    from loop import FIXED, end_later

    context = multiprocessing.get_context("fork")

    def make_report(number: int, results: multiprocessing.Queue) -> None:
        results.put([f"row {row} of report {number}" for row in range(20_000)])

    def collect(
        workers: list[multiprocessing.Process], results: multiprocessing.Queue
    ) -> list[list[str]]:
        if FIXED:
            reports = [results.get() for _worker in workers]
        for worker in workers:
            worker.join()
        return reports if FIXED else [results.get() for _worker in workers]

    def make_reports() -> list[list[str]]:
        results = context.Queue()
        workers = [context.Process(target=make_report, args=(n, results)) for n in range(2)]
        for worker in workers:
            worker.start()
        return collect(workers, results)

    end_later()
    while True:
        make_reports()
        time.sleep(0.2)
