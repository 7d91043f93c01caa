"""A pool gets its documents in chunks, and the large ones are all in the first.

As in the questions on Stack Overflow why Pool.map uses one processor: the default chunksize."""

from __future__ import annotations

RULE, CAUSE = "idle_workers", ""
LINE = "parse_all"
TWIN = True

if __name__ == "__main__":
    import multiprocessing

    from loop import FIXED, burn, until_over

    def parse(seconds: float) -> float:
        burn(seconds)
        return seconds

    def parse_all(pool: multiprocessing.pool.Pool) -> float:
        documents = [0.05] * 12 + [0.0005] * 36
        return sum(pool.map(parse, documents, chunksize=1 if FIXED else 12))

    with multiprocessing.Pool(4) as pool:
        for _step in until_over():
            parse_all(pool)
