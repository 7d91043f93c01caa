"""A pool of processes is given one number at a time.

As in many a question about ProcessPoolExecutor.map that is slower than a loop."""

from __future__ import annotations

RULE, CAUSE = "pool_overhead", "too small"
LINE = "count_primes"
TWIN = True

if __name__ == "__main__":
    from concurrent.futures import ProcessPoolExecutor

    from loop import FIXED, until_over

    def is_prime(number: int) -> bool:
        return all(number % divisor for divisor in range(2, 40))

    def count_primes(pool: ProcessPoolExecutor, numbers: range) -> int:
        return sum(pool.map(is_prime, numbers, chunksize=5000 if FIXED else 1))

    with ProcessPoolExecutor(2) as pool:
        for step in until_over():
            count = 40000 if FIXED else 1000
            count_primes(pool, range(step * count + 50, step * count + 50 + count))
