"""Attach and detach again and again while a program does all that makes that dangerous.

    python tests/stress/attach.py [--cycles 100] [--load malloc ...] [--kill]

Each load checks its own results, counts what it has done and, when it is told to end, prints that
count and leaves with exit status 42. A crash, a hang, a wrong result, a line on stderr or another
status fails. With `--kill` the tool is killed at a random moment of each attach instead."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

COMMON = """
import gc, os, sys, threading, time, json, hashlib, re, signal
END = sys.argv[1]
count = 0
def over():
    return os.path.exists(END)
def spread(work, threads):
    def loop():
        global count
        while not over():
            work()
            count += 1
    some = [threading.Thread(target=loop) for _ in range(threads)]
    for one in some: one.start()
    print("ready", flush=True)
    for one in some: one.join()
def leave():
    print(count, flush=True)
    sys.exit(42)
"""
LOADS = {
    "sleep": """
print("ready", flush=True)
while not over():
    time.sleep(0.05); count += 1
""",
    "python": """
print("ready", flush=True)
while not over():
    total = 0
    for i in range(20000): total += i
    assert total == 199990000
    count += 1
""",
    "malloc": """
def work():
    some = [bytes(n) for n in (10, 10**3, 10**5, 10**6, 3 * 10**6)]
    assert all(not any(one[:100]) for one in some)
    data = json.loads(json.dumps({str(i): [i] * 50 for i in range(100)}))
    assert data["7"] == [7] * 50
spread(work, 6)
""",
    "float": """
import math
def work():
    x = [math.sqrt(i) * 1.5 for i in range(2000)]
    assert abs(math.fsum(v * v for v in x) - 2.25 * 1999000) < 1e-3
spread(work, 2)
""",
    # Nobody keeps the GIL for long, and nobody who waits for it gets it.
    "stat": """
def work():
    for i in range(300): pass
    assert os.stat("/").st_nlink
spread(work, 4)
""",
    "calls": """
print("ready", flush=True)
while not over():
    for _ in range(5000): os.stat("/")
    count += 1
""",
    "gc": """
def work():
    for _ in range(200):
        a, b = [], []; a.append(b); b.append(a)
    gc.collect()
spread(work, 2)
""",
    # From 3.12 on Python warns of a fork while our thread waits for the GIL: see docs/attach.md.
    "fork": """
import warnings; warnings.filterwarnings("ignore", message=".*multi-threaded")
print("ready", flush=True)
while not over():
    pid = os.fork()
    if pid == 0:
        json.dumps(list(range(100)))
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    count += 1
""",
    "threads": """
def work():
    done = []
    some = [threading.Thread(target=lambda: done.append(1)) for _ in range(8)]
    for one in some: one.start()
    for one in some: one.join()
    assert len(done) == 8
spread(work, 2)
""",
    "native": """
def work():
    assert len(hashlib.pbkdf2_hmac("sha256", b"a", b"b", 30000)) == 32
spread(work, 2)
""",
    "asyncio": """
import asyncio
async def main():
    global count
    print("ready", flush=True)
    while not over():
        await asyncio.sleep(0.005); count += 1
asyncio.run(main())
""",
    "signals": """
seen = 0
def on_alarm(number, frame):
    global seen; seen += 1
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
print("ready", flush=True)
while not over():
    before = seen
    while seen == before: signal.pause()
    count += 1
signal.setitimer(signal.ITIMER_REAL, 0)
""",
}


class Target:
    """A program under load."""

    def __init__(self, load: str, folder: str, python: str = sys.executable) -> None:
        self.end = os.path.join(folder, f"end-{load}-{random.getrandbits(32)}")
        env = {name: value for name, value in os.environ.items() if not name.startswith("SONDE")}
        self.process = subprocess.Popen(
            [python, "-c", COMMON + LOADS[load] + "leave()\n", self.end],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        self.pid = self.process.pid
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def finish(self, timeout_s: float = 30) -> int:
        """How often it did its work; AssertionError if anything is not as it was."""
        with open(self.end, "w"):
            pass
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise AssertionError("the program hangs") from None
        assert (self.process.returncode, err) == (42, ""), (self.process.returncode, out, err)
        return int(out)


def run_cycles(target: Target, cycles: int) -> list[float]:
    """Attach and detach; how long each attach took."""
    from sonde.attach import visit

    took = []
    for _ in range(cycles):
        begin = time.monotonic()
        recording = visit.attach(target.pid, {"collector": "off"}, 30)
        took.append(time.monotonic() - begin)
        assert target.process.poll() is None, target.process.communicate()
        visit.detach(recording, 30)
        assert recording.find_state() == "ended"
        shutil.rmtree(recording.folder)  # thirty megabytes each
    return took


def kill_tools(target: Target, cycles: int) -> list[float]:
    """Kill the tool with SIGKILL at some moment of the attach."""
    took = []
    for _ in range(cycles):
        code = (
            "import sys; from sonde.attach import visit as attach; print('go', flush=True); "
            "attach.detach(attach.attach(int(sys.argv[1]), {'collector': 'off'}, 10), 10)"
        )
        tool = subprocess.Popen(
            [sys.executable, "-c", code, str(target.pid)], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert tool.stdout is not None
        tool.stdout.readline()
        if random.random() < 0.7:
            wait_traced(target.pid, tool)
            time.sleep(random.random() * 0.001)
        else:
            time.sleep(random.random() * 0.06)
        tool.kill()
        tool.communicate()
        assert target.process.poll() is None, target.process.communicate()
        took.append(0.0)
        _end_recording(target.pid)
    return took


def wait_traced(pid: int, tool: subprocess.Popen[str]) -> bool:
    """Wait until a thread of the process is being traced, or the tool has ended."""
    deadline = time.monotonic() + 10
    while tool.poll() is None and time.monotonic() < deadline:
        for tid in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{tid}/status", encoding="utf-8") as file:
                    if "TracerPid:\t0\n" not in file.read():
                        return True
            except OSError:
                continue
    return False


def _end_recording(pid: int) -> None:
    """What a tool that was killed may have left behind: a recording that runs."""
    from sonde import environ
    from sonde.attach import visit
    from sonde.session import list_sessions

    for known in list_sessions(environ.find_root()):
        if known.pid == pid and known.is_alive():
            visit.detach(known, 30)
        if known.pid == pid:
            shutil.rmtree(known.folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--load", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SONDE_DIR"] = os.path.join(folder, "sonde")
        for load in args.load:
            target = Target(load, folder, args.python)
            cycle = kill_tools if args.kill else run_cycles
            try:
                took = sorted(cycle(target, args.cycles))
                done = target.finish()
            except Exception as error:
                target.process.kill()
                failed, text = 1, f"{type(error).__name__}: {error}"
                print(f"{load:8}  FAILED: {text}", flush=True)
                continue
            print(
                f"{load:8}  {len(took)} times, median {took[len(took) // 2] * 1e3:.0f} ms, most "
                f"{took[-1] * 1e3:.0f} ms; it did its work {done} times",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
