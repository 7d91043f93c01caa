"""A program whose every true stack is known, doing all that makes stacks hard to read at once.

Run as `python oracle.py SECONDS INTERVAL [chains]`; prints the session's folder. find_faults() then
looks for stacks that never existed. `chains` leaves all but the fastest part out."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from itertools import pairwise

FAMILIES, LENGTH = "cd", 40


def make_chains() -> str:
    """c0 … c39 and d0 … d39: alike in memory, and never on one stack together."""
    lines = []
    for family in FAMILIES:
        for k in range(LENGTH):
            callee = f"{family}{k + 1}(n)" if k < LENGTH - 1 else f"leaf_{family}(n)"
            lines.append(f"def {family}{k}(n, a=1, b=2):\n  x = n + a\n  return {callee}\n")
        lines.append(f"def leaf_{family}(n):\n  s = 0\n  for i in range(n): s += i\n  return s\n")
    return "".join(lines)


stop = False
exec(compile(make_chains(), "<chains>", "exec"), globals())


def run_chains():
    while not stop:
        c0(5)  # noqa: F821
        d0(5)  # noqa: F821
        c0(50)  # noqa: F821
        d20(5)  # noqa: F821


def recurse(n):
    return recurse(n - 1) + 1 if n else leaf_c(3)  # noqa: F821


def run_recursion():
    while not stop:
        recurse(random.randrange(10, 1500))


def throw(n):
    if n:
        try:
            throw(n - 1)
        finally:
            _unused = n
    else:
        raise ValueError(n)


def run_exceptions():
    kept = []
    while not stop:
        try:
            throw(50)
        except ValueError as error:
            kept.append(error)
        if len(kept) > 20:
            kept.clear()


def generate(n):
    for i in range(n):  # noqa: UP028  the frame must stand on a line of its own
        yield i


def delegate(n):
    yield from generate(n)


def delegate_twice(n):
    yield from delegate(n)


def run_generators():
    while not stop:
        generator = delegate_twice(30)
        for i in generator:
            if i == 20:
                try:
                    generator.throw(KeyError())
                except KeyError:
                    pass
                break
        list(delegate_twice(10))


def live_shortly():
    leaf_d(200)  # noqa: F821


def run_threads():
    while not stop:
        threads = [threading.Thread(target=live_shortly) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Node:
    pass


def run_gc():
    while not stop:
        for _ in range(200):
            a, b = Node(), Node()
            a.b, b.a = b, a
        gc.collect()


def run_dynamic():
    i = 0
    while not stop:
        i += 1
        name = f"dynamic_{i % 1000}"
        space = {"leaf_c": leaf_c}  # noqa: F821
        body = "  x = 1\n" * (i % 7)
        exec(compile(f"def {name}():\n{body}  return leaf_c(60)\n", f"<{name}>", "exec"), space)
        space[name]()


async def await_3(n):
    await asyncio.sleep(0)
    return leaf_c(20)  # noqa: F821


async def await_2(n):
    return await await_3(n)


async def await_1(n):
    for _ in range(10):
        await await_2(n)


def run_asyncio():
    async def main():
        while not stop:
            await asyncio.gather(*[await_1(i) for i in range(5)])

    asyncio.run(main())


def run_forks():
    while not stop:
        pid = os.fork()
        if pid == 0:
            try:
                recurse(100)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.2)


WORK = (run_chains, run_recursion, run_exceptions, run_generators, run_threads, run_gc,
        run_dynamic, run_asyncio, run_forks)  # fmt: skip


def main() -> None:
    global stop
    import sonde

    warnings.simplefilter("ignore")
    sys.setrecursionlimit(20000)
    sys.setswitchinterval(5e-4)
    if sys.version_info < (3, 11):
        threading.stack_size(64 * 2**20)
    folder = sonde.start(
        collector=False, follow=False, stack_every=sys.argv[2], stack_bytes="256MiB",
    )  # fmt: skip
    chosen = (run_chains,) if "chains" in sys.argv else WORK
    threads = [threading.Thread(target=work, name=work.__name__) for work in chosen]
    for thread in threads:
        thread.start()
    time.sleep(float(sys.argv[1]))
    stop = True
    for thread in threads:
        thread.join()
    sonde.stop()
    print(folder)


# ---- the check: frames are (func, file, line), the innermost first -------------------------------

_CALLERS = {
    "leaf_c": r"c39|recurse|await_3|dynamic_\d+",
    "leaf_d": r"d39|live_shortly",
    "c0": "run_chains",
    "d0": "run_chains",
    "d20": "d19|run_chains",
    "recurse": "recurse|run_recursion|run_forks",
    "throw": "throw|run_exceptions",
    "generate": "delegate",
    "delegate": "delegate_twice",
    "delegate_twice": "run_generators",
    "await_3": "await_2",
    "await_2": "await_1",
    "live_shortly": "run",
    **{f"{f}{k}": f"{f}{k - 1}" for f in FAMILIES for k in range(1, LENGTH) if (f, k) != ("d", 20)},
}
_ROOTS = {"<module>", "_bootstrap", "<cut>", "<no room>"}


def _chain_lines() -> dict[str, range]:
    found, at = {}, 1
    for family in FAMILIES:
        for k in range(LENGTH):
            found[f"{family}{k}"] = range(at, at + 3)
            at += 3
        found[f"leaf_{family}"] = range(at, at + 4)
        at += 4
    return found


def find_fault(frames: list[tuple[str, str, int]]) -> str | None:
    """Why this stack cannot have existed; None if it can."""
    bare = [(func.rpartition(".")[2], file, line) for func, file, line in frames]
    for (func, file, line), (caller, _file, _line) in pairwise(bare):
        if caller != "<cut>" and func in _CALLERS and not re.fullmatch(_CALLERS[func], caller):
            return f"{caller} called {func}"
        if func.startswith("dynamic_") and file != f"<{func}>":
            return f"{func} is in {file}"
        if file == "<chains>" and line not in _LINES_OF[func]:
            return f"{func} has no line {line}"
    root = bare[-1][0]
    return None if root in _ROOTS else f"{root} is no root"


_LINES_OF = _chain_lines()


def find_faults(stacks: Iterable[tuple[list[tuple[str, str, int]], int]]) -> dict[str, int]:
    """Faults and how many samples have them."""
    found: dict[str, int] = {}
    for frames, samples in stacks:
        fault = find_fault(frames)
        if fault is not None:
            found[fault] = found.get(fault, 0) + samples
    return found


if __name__ == "__main__":
    main()
