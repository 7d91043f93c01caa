"""The stack source: what is sampled of stacks that are hard to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sonde import stacks
from sonde.session import Session

JOB = """
import sys, threading, time
import sonde

def spin(until):
    x = 0
    while time.monotonic() < until:
        x += 1

{code}

sys.setrecursionlimit(5000)
threading.stack_size(64 * 2**20)
folder = sonde.start(collector=False, follow=False, stack_every="1ms")
thread = threading.Thread(target=work, args=(time.monotonic() + 0.5,))
thread.start()
thread.join()
sonde.stop()
print(folder)
"""


@pytest.fixture
def sample(tmp_path: Path):
    """Runs code that defines work(until); the functions of every stack with spin, innermost first."""

    def run(code: str) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", JOB.format(code=code)],
            env={"SONDE_DIR": str(tmp_path), "PATH": ""},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        nodes = stacks.read_nodes(Session(done.stdout.strip()))
        found = []
        for place in range(len(nodes)):
            names = [nodes.frame(at).func for at in nodes.walk(place)]
            if nodes.samples[place] and names[0] == "spin":
                found.append(names)
        return found

    return run


def test_a_stack_deeper_than_512_frames_is_cut_and_says_so(sample):
    found = sample("def work(until, n=800):\n  return work(until, n - 1) if n else spin(until)")
    assert found
    for names in found:
        assert names[-1] == "<cut>"
        assert names[:-1] == ["spin", *["work"] * 511]


def test_generators_on_a_stack_keep_their_order(sample):
    found = sample(
        "def generate(until, n):\n"
        "  if n:\n    yield from generate(until, n - 1)\n"
        "  else:\n    spin(until)\n    yield\n"
        "def work(until):\n  list(generate(until, 40))"
    )
    assert found
    for names in found:
        assert names[:43] == ["spin", *["generate"] * 41, "work"]


def test_calls_through_c_code_keep_their_callers(sample):
    found = sample(
        "def work(until, n=40):\n"
        "  return sorted([1], key=lambda _: work(until, n - 1)) if n else spin(until)"
    )
    assert found
    for names in found:
        assert names.count("work") == 41
        assert sum("lambda" in name for name in names) == 40


def test_a_stack_over_many_chunks_of_memory_is_whole(sample):
    """A chunk of the data stack is 16 KB; these frames take about 1 KB each."""
    values = ", ".join(f"v{i}" for i in range(100))
    found = sample(
        f"def work(until, n=100):\n  {values} = range(100)\n"
        "  return work(until, n - 1) if n else spin(until)"
    )
    assert found
    for names in found:
        assert names[:102] == ["spin", *["work"] * 101]
