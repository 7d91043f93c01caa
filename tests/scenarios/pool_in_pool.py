"""Tasks of a thread pool wait for tasks of the same pool; a timeout gets them on, now and then.

Python's documentation of concurrent.futures warns of it."""

from __future__ import annotations

RULE, CAUSE = "stalled_waits", "same pool"
LINE = "build"
TWIN = True

if __name__ == "__main__":
    import time
    from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait

    from loop import FIXED, until_over

    outer = ThreadPoolExecutor(3)
    inner = ThreadPoolExecutor(3) if FIXED else outer

    def draw() -> None:
        time.sleep(0.01)

    def build() -> None:
        part = inner.submit(draw)
        try:
            part.result(timeout=0.5)
        except TimeoutError:
            part.cancel()

    for _step in until_over():
        wait([outer.submit(build) for _ in range(3)])
