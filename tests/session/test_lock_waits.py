"""Threads that wait for a lock: who holds it is told where Python knows, and never made up."""

from __future__ import annotations

import json
import sys

import sonde
from conftest import wait_for
from support.needs import need_gil

PROGRAM = """
import contextlib, queue, threading, time
import sonde

lock, other, rlock, bare, given, own = (threading.Lock() for _ in range(6))
rlock = threading.RLock()
condition = threading.Condition(given)
empty = queue.Queue()

def hold_lock():
    with contextlib.suppress(OSError), open(__file__), lock:  # HOLDS
        for _ in range(2):
            try:
                with other: pass
                time.sleep(1000)
            finally:
                pass

def hold_rlock():
    rlock.acquire()
    with lock: pass

def want_rlock():
    with rlock: pass

def hold_bare(): bare.acquire()

def want_bare(): bare.acquire()

def want_other():  # nobody holds it now; one did, and its values still lie there
    other.acquire()
    other.acquire()

def give_back():
    with given: condition.wait()

def want_given():  # whose `with` is another's, who has given it back
    given.acquire()
    given.acquire()

def hold_own():
    with own: own.acquire()  # OWN

def want_item(): empty.get()

def want_end(): threads["hold_rlock"].join()

folder = sonde.start(collector=False, follow=False)
threads = {}
for function in (hold_lock, hold_rlock, want_rlock, hold_bare, want_bare, want_other, give_back, want_given,
                 hold_own, want_item, want_end):
    thread = threading.Thread(target=function, name=function.__name__, daemon=True)
    threads[function.__name__] = thread
    thread.start()
    time.sleep(0.05)
print("ready", flush=True)
time.sleep(1000)
"""
KNOWN = {
    "hold_rlock": ("Lock", "hold_lock"),
    "want_rlock": ("RLock", "hold_rlock"),
    "want_bare": ("Lock", None),
    "want_other": ("Lock", None),
    "want_given": ("Lock", None),
    "hold_own": ("Lock", "hold_own"),
}
if sys.version_info < (3, 13):
    KNOWN["want_end"] = ("thread", "hold_rlock")
SQL = """
WITH name AS (SELECT thread, ARG_MAX(name, t_ns) AS name FROM python.thread GROUP BY thread)
SELECT waiter.name AS waiter, ARG_MAX([kind, holder.name, holder_frame.func], t_ns) AS newest
FROM python.lock_wait AS w JOIN name AS waiter USING (thread)
LEFT JOIN name AS holder ON holder.thread = w.holder
LEFT JOIN python.frame AS holder_frame ON holder_frame.stack = holder_stack AND depth = 0
GROUP BY ALL"""


def find_line(mark: str) -> int:
    return next(at for at, line in enumerate(PROGRAM.splitlines(), 1) if mark in line)


def test_who_holds_a_lock_is_told_if_it_is_certain(start, sonde_cli) -> None:
    need_gil()  # who holds a lock is not known there
    process = start(PROGRAM)

    def look() -> dict[str, dict]:
        done = sonde_cli("stacks", process.pid, "--format", "json")
        return {one["name"]: one for one in json.loads(done.stdout)[0]["threads"]}

    wait_for(lambda: {one for one, t in look().items() if t["lock"]} >= KNOWN.keys())
    found = look()
    names = {one["thread"]: name for name, one in found.items()}
    locks = {name: one["lock"] for name, one in found.items() if one["lock"]}
    said = {name: (one["kind"], names.get(one["holder"])) for name, one in locks.items()}
    assert said == KNOWN
    taken = {name: one["taken_line"] for name, one in locks.items() if one["taken_line"]}
    assert taken == {"hold_rlock": find_line("HOLDS"), "hold_own": find_line("OWN")}

    text = sonde_cli("stacks", process.pid).stdout
    holder = found["hold_lock"]["thread"]
    place = f"program0.py:{find_line('HOLDS')}"
    assert f'waits for a lock that thread {holder} "hold_lock" holds, taken at ' in text
    assert place in text and "a lock that it holds itself" in text
    assert "a lock (who holds it is not known)" in text and "an item from a queue" in text

    process.kill()  # what is recorded says the same
    process.wait()
    rows = sonde.open(process.pid).query(SQL).to_pylist()
    assert {row["waiter"]: tuple(row["newest"][:2]) for row in rows} == KNOWN
    assert all(row["newest"][1] == row["newest"][2] for row in rows if row["newest"][1])
    text = sonde_cli("stacks", process.pid).stdout
    assert f'waits for a lock that thread {holder} "hold_lock" holds, taken at ' in text
