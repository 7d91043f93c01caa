"""Workers count words in a dictionary of a manager, which asks another process each time.

As in Wireless-Innovation-Forum/Spectrum-Access-System pull request 731."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "asks another process"
LINE = "count"
TWIN = True

if __name__ == "__main__":
    import multiprocessing
    from collections.abc import MutableMapping

    from loop import FIXED, burn, until_over

    def count(words: list[str], counts: MutableMapping[str, int]) -> None:
        for word in words:
            counts[word] = counts.get(word, 0) + 1

    def work(shared: MutableMapping[str, int]) -> None:
        words = [f"word{number % 50}" for number in range(500)]
        own: dict[str, int] = {}
        for _step in until_over():
            burn(0.02)
            count(words, own if FIXED else shared)
        shared.update(own)

    processes = multiprocessing.get_context("fork")
    with processes.Manager() as manager:
        counts = manager.dict()
        workers = [processes.Process(target=work, args=(counts,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
