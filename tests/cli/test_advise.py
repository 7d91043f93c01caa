"""`sonde advise`: what a person reads, what a program reads, and the exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from sonde import plugins
from sonde.job.source_context import has_gil
from support.handmade_machine import record
from support.places import DOCS

HOT = {"throttle": "hw_thermal", "sm_clock_mhz": 900, "temperature_c": 91}


@pytest.fixture
def hot(root: Path) -> str:
    """A job whose GPU is too hot."""
    return record(60, gpu=HOT)


def test_the_verdict_comes_first_then_the_evidence_then_the_next_step(sonde_cli, hot: str) -> None:
    done = sonde_cli("advise", hot)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "CRITICAL: A GPU slows itself down: it is too hot, or short of power (GPU 0)  [gpu_throttle]"
    )
    labels = [line.split()[0] for line in lines[1:] if line[2:3].strip()]
    assert labels == ["evidence", "next", "why", "seen"]
    told = " ".join(done.stdout.split())
    assert "in most of the pieces (6 of 6), confidence high" in told
    assert "reasons hw_thermal, slowed 100 %, clock 900 MHz" in told
    assert "max temperature 91 °C" in told
    assert "nvidia-smi" in done.stdout
    assert "pieces of 10 s" in lines[-1]
    assert "\x1b" not in done.stdout


def test_a_healthy_job_gets_one_line_that_says_what_was_looked_at(sonde_cli) -> None:
    done = sonde_cli("advise", record(60))
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("nothing is wrong, as far as can be seen: ")
    assert "6 pieces of 10 s" in line
    assert "rules lack data (--all says which)" in line


CRASH = """
import multiprocessing, sys, time
import sonde
def load(shard):
    time.sleep(0.5)
    if shard < 2: sys.exit(7)
    raise ValueError(f"shard {shard} is empty")
if __name__ == "__main__":
    children = [multiprocessing.Process(target=load, args=(n,)) for n in range(3)]
    for one in children: one.start()
    for one in children: one.join()
    load(3)
"""


def test_how_processes_ended_comes_first_if_it_was_not_in_order(run, root, sonde_cli) -> None:
    done = run(CRASH, check=False, SONDE="1", SONDE_COLLECTOR="off")
    assert "shard 3 is empty" in done.stderr
    shown = " ".join(sonde_cli("advise", "program.py").stdout.split())
    assert " each ended with exit code 7; it last called sys.exit(7) in load (" in shown
    assert shown.startswith("2 processes (")
    assert (
        ") ended with an uncaught ValueError: shard 3 is empty (exit code 1): `sonde stacks`"
        in shown
    )
    assert "nothing is wrong" not in shown
    told = str(sonde.advise("program.py"))
    assert told.startswith("2 processes (") and "Nothing is wrong" not in told


def test_a_recording_without_data_is_not_called_healthy(sonde_cli) -> None:
    done = sonde_cli("advise", record(60), "--rule", "fragmentation")
    assert done.returncode == 0
    assert done.stdout.startswith("nothing can be said: no rule has the data it needs")


def test_all_tells_what_became_of_every_rule(sonde_cli, hot: str) -> None:
    done = sonde_cli("advise", hot, "--all")
    states = dict(line.split()[:2] for line in done.stdout.splitlines() if line.strip())
    assert states["gpu_throttle"] == "found"
    assert states["low_gpu"] == "clear"
    assert states["fragmentation"] == "abstained"
    assert "python.torch_memory has no rows" in done.stdout


def test_json_has_the_same_findings(sonde_cli, hot: str) -> None:
    told = json.loads(sonde_cli("advise", hot, "--format", "json").stdout)
    (finding,) = told["findings"]
    assert (finding["rule"], finding["severity"]) == ("gpu_throttle", "critical")
    assert finding["evidence"]["clock_mhz"] == 900
    assert {outcome["rule"] for outcome in told["outcomes"]} == set(
        plugins.list_names("advice.rules")
    )
    assert json.loads(sonde_cli("advise", hot, "--format", "json").stdout) == told


@pytest.mark.parametrize(("level", "code"), [("info", 8), ("warning", 8), ("critical", 8)])
def test_fail_on_gives_ci_an_exit_code(sonde_cli, hot: str, level: str, code: int) -> None:
    assert sonde_cli("advise", hot, "--fail-on", level).returncode == code


def test_what_is_less_bad_does_not_fail(sonde_cli) -> None:
    folder = record(60, gpu={"util_pct": 75.0, "memory_used_bytes": 10**10})
    assert sonde_cli("advise", folder, "--fail-on", "info").returncode == 8
    assert sonde_cli("advise", folder, "--fail-on", "warning").returncode == 0


def test_one_rule_can_be_asked_with_another_limit(sonde_cli) -> None:
    folder = record(60)
    asked = ("advise", folder, "--rule", "low_gpu", "--fail-on", "info")
    assert sonde_cli(*asked).returncode == 0
    assert sonde_cli(*asked, "--set", "low_gpu.moderate_pct=99").returncode == 8


def test_since_and_piece_choose_the_time(sonde_cli) -> None:
    folder = record(60, gpu=lambda t: HOT if t < 20 else {})
    assert "gpu_throttle" in sonde_cli("advise", folder).stdout
    assert "gpu_throttle" not in sonde_cli("advise", folder, "--since", "30s").stdout
    told = json.loads(sonde_cli("advise", folder, "--piece", "5", "--format", "json").stdout)
    assert (told["piece_ns"], told["pieces"]) == (5 * 10**9, 12)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--set", "nonsense"), "RULE.NAME=VALUE"), (("--rule", "nonsense"), "there is no rule"),
     (("--piece", "0"), "--piece"), (("--set", "low_gpu.x=1"), "has no limit x")],
)  # fmt: skip
def test_wrong_words_are_one_line_and_exit_code_2(sonde_cli, words, said: str) -> None:
    done = sonde_cli("advise", record(3), *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


def test_the_list_shows_every_rule_with_its_limits(sonde_cli) -> None:
    done = sonde_cli("advise", "--list")
    assert done.returncode == 0
    for name in plugins.list_names("advice.rules"):
        assert f"\n{name}: " in "\n" + done.stdout
    assert "low_gpu.low_pct=30" in done.stdout


def test_the_list_is_the_table_of_the_documentation(sonde_cli) -> None:
    done = sonde_cli("advise", "--list", "--format", "markdown")
    rows = done.stdout.splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(plugins.list_names("advice.rules"))
    page = (DOCS / "advice.md").read_text()
    assert done.stdout in page, "docs/advice.md is old; `make docs` writes it"


def test_the_list_is_json_for_programs(sonde_cli) -> None:
    rules = json.loads(sonde_cli("advise", "--list", "--format", "json", "--rule", "swap").stdout)
    assert [rule["rule"] for rule in rules] == ["swap"]
    assert rules[0]["limits"]["rate_bytes"]["value"] == 1e6


def test_a_name_cannot_draw_on_the_terminal(sonde_cli) -> None:
    folder = record(60, disk={"device": "\x1b[2Jsda", "busy_pct": 99.0},
                    pressure=[{"resource": "io", "scope": "cgroup", "some_pct": 50.0,
                               "full_pct": 40.0}])  # fmt: skip
    shown = sonde_cli("advise", folder).stdout
    assert "disk \\x1b[2Jsda" in shown
    assert "\x1b" not in shown


def test_a_terminal_gets_colours(hot: str) -> None:
    shown = _show(hot, {"TERM": "xterm"})
    assert "\x1b[1;31mCRITICAL\x1b[0m: A GPU slows itself down" in shown
    assert "\x1b" not in _show(hot, {"TERM": "xterm", "NO_COLOR": "1"})


def _show(folder: str, changes: dict[str, str]) -> str:
    """What a terminal gets."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "advise", folder], stdout=follower,
        env={**os.environ, **changes},
    )  # fmt: skip
    os.close(follower)
    pieces = []
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(leader)
    assert process.wait(60) == 0
    return b"".join(pieces).decode()


def test_several_recordings_are_judged_together(sonde_cli, root: Path) -> None:
    record(30)
    record(30, gpu=HOT)
    told = json.loads(sonde_cli("advise", "all", "--format", "json").stdout)
    assert len(told["processes"]) == 2


# ---- a closer look -------------------------------------------------------------------------------

SEARCH = """
import sonde
sonde.start(collector="off", stack_every="20ms")
seen = list(range(10_000))
print("ready")
while True:
    -1 in seen
"""


def test_a_closer_look_says_what_it_did_and_leaves_the_job_as_it_was(sonde_cli, start) -> None:
    program = start(SEARCH)
    done = sonde_cli("advise", str(program.pid), "--look", "1s")
    assert done.returncode == 0, done.stderr
    assert f"looking closer at process {program.pid} for 1 s" in done.stderr
    (look,) = (line for line in done.stdout.splitlines() if line.startswith("looked closer"))
    assert "1,000 samples a second instead of 50" in look and "now as before" in look
    (every,) = (line for line in sonde_cli("config", str(program.pid)).stdout.splitlines()
                if "stack.every" in line)  # fmt: skip
    assert "20ms" in every


def test_json_has_what_a_closer_look_showed(sonde_cli, start) -> None:
    program = start(SEARCH)
    look = json.loads(
        sonde_cli("advise", str(program.pid), "--look", "1s", "--format", "json").stdout
    )["look"]
    assert (look["pids"], look["every_before_ns"]) == ([program.pid], 20_000_000)
    assert look["advice"]["pieces"] > 0 and "native" in look


CRAWL = """
import asyncio, sonde
sonde.start(collector="off", stack_every="20ms")

async def fetch(gate):
    async with gate:
        await asyncio.sleep(0.01)

async def crawl():
    gate = asyncio.Semaphore(1)
    print("ready")
    while True:
        await asyncio.gather(*(fetch(gate) for _ in range(50)))

asyncio.run(crawl())
"""


@pytest.mark.skipif(not has_gil(), reason="tasks are not read without a GIL")
def test_a_closer_look_says_what_tasks_await_while_their_loop_rests(sonde_cli, start) -> None:
    program = start(CRAWL)
    told = wait_for_tasks(sonde_cli, program.pid)
    # Code has no qualified name before Python 3.11.
    acquire = "Semaphore.acquire" if sys.version_info >= (3, 11) else "acquire"
    assert any(f"asyncio.{acquire} in fetch" in line for line in told)
    assert any("asyncio.sleep in fetch" in line for line in told)


def wait_for_tasks(sonde_cli, pid: int) -> list[str]:
    """Look until the loop has been seen, which takes a second."""
    for _ in range(20):
        done = sonde_cli("advise", str(pid), "--look", "1s")
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stdout.splitlines() if "asyncio: " in line]
        if told:
            return told
    return []


def test_there_is_nothing_to_look_at_in_a_job_that_has_ended(sonde_cli, hot: str) -> None:
    done = sonde_cli("advise", hot, "--look")
    assert done.returncode != 0
    assert "does not run on this machine" in done.stderr
