"""Programs whose calls are traced, and what was found."""

from __future__ import annotations

import sonde
from sonde.analysis.exact_calls import Stats, read_calls

ON = {"collector": "off", "source.call": "on"}
HEAD = """
import sys, time, sonde, threading, json
from sonde.job.recorder import recorder
ON = {"collector": "off", "source.call": "on"}
def publish():
    recorder._sources["call"][0].publish()
"""


def read(target: str | int = "all") -> Stats:
    return read_calls(sonde.open(target))


def by_name(stats: Stats, name: str):
    found = [value for key, value in stats.items() if key[2] == name]
    assert len(found) == 1, (name, sorted(key[2] for key in stats))
    return found[0]


def callers(stats: Stats, name: str) -> dict[str, tuple]:
    return {key[2]: value for key, value in by_name(stats, name)[4].items()}


WORK = """
import sys, time, json, functools, contextlib

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def even(n):
    return True if n == 0 else odd(n - 1)
def odd(n):
    return False if n == 0 else even(n - 1)
def count(n):
    for i in range(n):
        yield i
def relay(n):
    got = yield from count(n)
    return got
def fail(n):
    if n:
        fail(n - 1)
    raise ValueError(n)
def close_one():
    g = count(5)
    next(g)
    g.close()
    h = count(5)
    next(h)
    try:
        h.throw(KeyError("x"))
    except KeyError:
        pass
@contextlib.contextmanager
def within():
    yield 1
class Thing:
    def __init__(self, value=1):
        self.value = value
    def __call__(self, *args, **kwargs):
        return len(args)
    @property
    def twice(self):
        return self.value * 2
    @classmethod
    def make(cls):
        return cls(3)
    @staticmethod
    def still():
        return abs(-1)
    def __del__(self):
        id(self)
class Sub(Thing):
    def __init__(self):
        super().__init__(5)
class MyList(list):
    def append(self, item):
        super().append(item)
def key(x):
    return -x
def spread(*args, **kwargs):
    return max(*args)
def builtins_of_all_kinds():
    items = []
    for i in range(7):
        items.append(i)
    sorted(items, key=key)
    list(map(str, items))
    "a,b".split(",")
    str.upper("x")
    dict.fromkeys([1, 2])
    divmod(7, 2)
    print("", end="", file=sys.stderr)
    try:
        int("x")
    except ValueError:
        pass
    try:
        items.index(99)
    except ValueError:
        pass
    try:
        [].pop()
    except IndexError:
        pass
    functools.partial(key, 1)()
    functools.reduce(lambda a, b: a + b, items)
    MyList().append(2)
    eval("len('abc')")
    json.loads(json.dumps({"a": [1, 2.5, None]}))
def main():
    fib(12); even(9)
    list(count(4)); sum(relay(3)); list(i * 2 for i in count(3))
    try:
        fail(3)
    except ValueError:
        pass
    close_one()
    with within():
        pass
    thing = Thing(); thing(1, 2, x=3); thing.twice; Thing.make(); Thing.still(); Sub()
    del thing
    spread(1, 2, 3, **{"a": 1})
    builtins_of_all_kinds()
"""
