"""Four processes note what they have sent in one file, and keep its lock while they send.

As an index, a cache folder or a log that several workers share."""

from __future__ import annotations

RULE, CAUSE = "process_lock", "same lock"
LINE = "export"
ALSO = ("costly_calls", "idle_workers")
TWIN = True

if __name__ == "__main__":
    import fcntl
    import multiprocessing
    import tempfile
    import time

    from loop import FIXED, burn, until_over

    def send() -> None:
        burn(0.002)
        time.sleep(0.03)

    def export(path: str) -> None:
        if FIXED:
            send()
        with open(path, "a") as index:
            fcntl.flock(index, fcntl.LOCK_EX)
            if not FIXED:
                send()
            index.write("sent\n")

    def work(path: str) -> None:
        for _step in until_over():
            export(path)

    with tempfile.NamedTemporaryFile() as index:
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=work, args=(index.name,)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
