"""A pool of threads that mostly waits for work, as a server's does: nothing is wrong."""

from __future__ import annotations

RULE = CAUSE = None

if __name__ == "__main__":
    import time
    from concurrent.futures import ThreadPoolExecutor

    from loop import burn, until_over

    with ThreadPoolExecutor(4) as pool:
        for _step in until_over():
            pool.submit(burn, 0.002)
            time.sleep(0.02)
