"""A pool whose workers rest while the program works: they wait for a lock that processes share."""

from __future__ import annotations

RULE, CAUSE = None, None
LIMITS = {"hang.least_s": 2, "deadlock.least_s": 2}

if __name__ == "__main__":
    import multiprocessing

    from loop import SECONDS, burn

    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.map(abs, range(100))
        burn(SECONDS / 2)
