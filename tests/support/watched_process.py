"""Programs to be watched by `sonde top`, whose shares and threads are known."""

from __future__ import annotations

# Four functions that use half, 30, 15 and 5 percent of the CPU time, whoever else wants it.
SHARES = """
import sonde, sys, time
def spin(ns):
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end: pass
def half(): spin(5_000_000)
def third(): spin(3_000_000)
def sixth(): spin(1_500_000)
def rest(): spin(500_000)
def recurse(n): return recurse(n - 1) if n else rest()
def work():
    half(); third(); sixth(); recurse(20)
print(sonde.start(collector=sys.argv[1], stack_every=0.001, archive_every=0.5), flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end: work()
"""

# Threads that do all there is: compute, sleep, end; with names of their own.
BUSY = """
import sonde, sys, threading, time
def spin():
    for i in range(3000): pass
def deep(n): deep(n - 1) if n else spin()
def work():
    while True: spin(); deep(5); time.sleep(0.002)
def sleep_long():
    while True: time.sleep(30)
sonde.start(collector=sys.argv[1], stack_every=0.002, archive_every=0.5, ring_bytes=sys.argv[2])
for i in range(3): threading.Thread(target=work, name=f"worker-{i}", daemon=True).start()
threading.Thread(target=sleep_long, name="sleeper", daemon=True).start()
threading.Thread(target=time.sleep, args=(0.5,), name="brief").start()
print("ready", flush=True)
work()
"""
