"""`sonde profile`: runs of a process, from another one."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from conftest import wait_for
from sonde import _core
from sonde.session import list_sessions, runs

PROGRAM = """
import sys, time
{start}
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(50))
def a(): burn(0.0075)
def b(): burn(0.0025)
print("ready", flush=True)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    a(); b()
sys.exit(3)
"""
RECORDED = PROGRAM.format(start="import sonde; sonde.start(collector=False)", seconds=60)


def find_shares(functions: list[dict]) -> dict[str, float]:
    return {row["func"]: row["total_pct"] for row in functions}


def test_a_recorded_process_is_profiled_at_once(start, sonde_cli) -> None:
    process = start(RECORDED)
    done = sonde_cli("profile", process.pid, "--duration", "1", "--format", "json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["duration_ns"] == pytest.approx(1e9, abs=0.2e9) and shown["truncated"]
    shares = find_shares(shown["functions"])
    # Of a second in which others run as well, shares of elapsed time are not known better than this.
    assert shares["a"] > shares["b"] > 0 and shares["a"] + shares["b"] == pytest.approx(100, abs=4)


def test_a_run_is_started_waited_for_and_read_by_its_id(start, sonde_cli, tmp_path) -> None:
    process = start(RECORDED)
    run_id = sonde_cli(
        "profile", "start", process.pid, "--duration", "30", "--tag", "t"
    ).stdout.strip()
    assert sonde_cli("profile", "status", run_id).stdout.strip() == "RUNNING"
    second = sonde_cli("profile", "start", process.pid)
    assert second.returncode == 7 and run_id in second.stderr
    late = sonde_cli("profile", "wait", run_id, "--timeout", "0.2")
    assert late.returncode == 6 and "RUNNING after 0.2 s" in late.stderr
    # The pid of the process means its newest run.
    assert sonde_cli("profile", "stop", run_id.rpartition("-")[2]).stdout.strip() == "SUCCEEDED"
    status = json.loads(sonde_cli("profile", "status", run_id, "--format", "json").stdout)
    names = [name for name, _ns in status["states"]]
    assert names == ["PREPARING", "RUNNING", "STOPPING", "PROCESSING", "SUCCEEDED"]
    text = sonde_cli("profile", "results", run_id).stdout
    assert run_id in text and " a (" in text
    sonde_cli("profile", "results", run_id, "--to", "svg", "-o", tmp_path / "run.svg")
    assert f"written: {tmp_path / 'run.svg'}" in sonde_cli("profile", "results", run_id).stdout
    listed = json.loads(sonde_cli("profile", "list", process.pid, "--format", "json").stdout)
    assert [(row["run"], row["state"], row["tags"]) for row in listed] == [
        (run_id, "SUCCEEDED", ["t"])
    ]


def test_a_run_that_nobody_waits_for_ends_by_itself(start, sonde_cli, root) -> None:
    process = start(RECORDED)
    run_id = sonde_cli("profile", "start", process.pid, "--duration", "300ms").stdout.strip()
    run = runs.find_run(run_id, str(root))
    wait_for(lambda: run.state == "PROCESSING")
    assert run.result().duration_s == pytest.approx(0.3, abs=0.2)


def test_runs_with_one_tag_are_shown_as_one(start, sonde_cli) -> None:
    processes = [start(RECORDED), start(RECORDED)]
    samples = 0
    for process in processes:
        done = sonde_cli("profile", process.pid, "-d", "0.3", "--tag", "x", "--format", "json")
        samples += json.loads(done.stdout)["samples"]
    merged = json.loads(sonde_cli("profile", "results", "--tag", "x", "--format", "json").stdout)
    assert merged["samples"] == samples and len(merged["runs"]) == 2
    assert sonde_cli("profile", "results", "--tag", "y").returncode == 3


def test_a_command_is_profiled_from_its_first_moment_and_keeps_its_exit_code(
    sonde_cli, tmp_path
) -> None:
    script = tmp_path / "p.py"
    script.write_text(PROGRAM.format(start="early = sum(range(3_000_000))", seconds=0.5))
    done = sonde_cli(
        "profile", "--format", "json", "--by", "wall", "--", sys.executable, script,
        SONDE_COLLECTOR="off",
    )  # fmt: skip
    assert done.returncode == 3 and done.stdout.startswith("ready\n")
    shown = json.loads(done.stdout.partition("\n")[2])
    shares = find_shares(shown["functions"])
    assert {"a", "b", "<module>"} <= set(shares)
    assert shown["duration_ns"] > 0.5e9 and shown["samples"] > 200


def test_a_command_that_is_over_at_once_has_a_profile(sonde_cli) -> None:
    for _ in range(4):
        code = "sum(range(2_000_000))"
        done = sonde_cli("profile", "--format", "json", "--", sys.executable, "-c", code,
                         SONDE_COLLECTOR="off")  # fmt: skip
        assert done.returncode == 0 and done.stdout, done.stderr
        assert json.loads(done.stdout)["samples"] > 0


def test_a_run_waits_for_a_recording_that_is_only_starting(start) -> None:
    start(RECORDED)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    page = session.map_control(writable=True)
    # As it is before the first source has started.
    _core.control_on(page, False)
    _core.control_state(page, _core.STARTING)
    run = runs.start(session, runs.RunOptions())
    _core.control_on(page, True)
    _core.control_state(page, _core.RUNNING)
    run.wait_running(100)
    run.stop()


def test_a_command_that_is_no_python_keeps_its_exit_code_and_one_line_says_why(sonde_cli) -> None:
    done = sonde_cli("profile", "--", "sh", "-c", "echo hello; exit 4")
    assert (done.returncode, done.stdout) == (4, "hello\n")
    assert done.stderr.count("\n") == 1 and "no Python process" in done.stderr
    assert sonde_cli("profile", "--", "/no/such/program").returncode == 1


def test_a_run_can_be_exported_in_the_order_of_time(start, sonde_cli, tmp_path) -> None:
    process = start(RECORDED)
    run_id = sonde_cli("profile", "start", process.pid, "--duration", "0.5").stdout.strip()
    assert sonde_cli("profile", "wait", run_id).stdout.strip() == "SUCCEEDED"
    path = tmp_path / "run.json"
    assert sonde_cli("export", run_id, "--to", "speedscope", "-o", path).returncode == 0
    profile = json.loads(path.read_text())["profiles"][0]
    assert profile["endValue"] - profile["startValue"] == pytest.approx(0.5e9, rel=0.4)
    done = sonde_cli("profile", "results", run_id, "--to", "pprof", "-o", tmp_path / "run.pb.gz")
    assert done.returncode == 0 and (tmp_path / "run.pb.gz").stat().st_size > 100
    assert sonde_cli("profile", "results", run_id, "--to", "chrome").returncode == 2


def test_runs_are_a_table(start, sonde_cli) -> None:
    process = start(RECORDED)
    sonde_cli("profile", process.pid, "-d", "0.2", "--name", "it")
    sql = "SELECT run, state, name, started_by, end_t_ns - t_ns AS ns FROM sonde.run"
    row = json.loads(sonde_cli("query", process.pid, sql, "--format", "json").stdout)
    row = row[0] if isinstance(row, list) else row
    assert (row["state"], row["name"], row["started_by"]) == ("SUCCEEDED", "it", "tool")
    assert row["ns"] == pytest.approx(0.2e9, rel=0.5)


def test_ctrl_c_ends_it_early_with_what_there_is(start, root) -> None:
    process = start(RECORDED)
    tool = subprocess.Popen(
        [sys.executable, "-m", "sonde", "profile", str(process.pid), "--duration", "50"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    session = next(s for s in list_sessions(str(root)) if s.pid == process.pid)
    wait_for(lambda: [run for run in runs.list_runs(session) if run.state == "RUNNING"])
    time.sleep(0.3)
    tool.send_signal(signal.SIGINT)
    out, _ = tool.communicate(timeout=240)
    assert tool.returncode == 0 and "samples in" in out
    assert process.poll() is None


def test_a_terminal_gets_a_bar(start, tmp_path) -> None:
    process = start(RECORDED)
    main, tty = pty.openpty()
    tool = subprocess.Popen(
        [sys.executable, "-m", "sonde", "profile", str(process.pid), "--duration", "1"],
        stdout=subprocess.PIPE, stderr=tty, text=True,
    )  # fmt: skip
    os.close(tty)
    tool.communicate(timeout=240)
    seen = os.read(main, 100_000).decode()
    os.close(main)
    assert f"profiling {process.pid}" in seen and "/1 s" in seen


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("profile",), 2, "give a pid"),
        (("profile", "status"), 2, "arguments are required: RUN"),
        (("profile", "results"), 2, "give a RUN"),
        (("profile", "status", "run-x"), 3, "no run run-x"),
        (("profile", "1", "--duration", "soon"), 2, "not a time"),
        (("profile", "results", "run-x", "-o", "f"), 2, "--to"),
        (("profile", "nothing-so-called"), 3, "there is no recording called"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(sonde_cli, start, words, code, said) -> None:
    if "--duration" in words:
        words = ("profile", str(start(RECORDED).pid), *words[2:])
    done = sonde_cli(*words)
    assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == 1


def test_a_paused_process_is_not_profiled(start, sonde_cli) -> None:
    process = start(RECORDED)
    sonde_cli("pause", process.pid)
    done = sonde_cli("profile", process.pid, "-d", "1")
    assert done.returncode == 1 and "sonde resume" in done.stderr


def test_a_starter_that_dies_leaves_the_process_free(start, sonde_cli, root, monkeypatch) -> None:
    process = start(RECORDED)
    session = next(s for s in list_sessions(str(root)) if s.pid == process.pid)
    child = os.fork()
    if child == 0:
        # Dies between its claim and its request.
        runs._core.run_start = lambda *args: os._exit(0)  # type: ignore[assignment]
        runs.start(session, runs.RunOptions())
    os.waitpid(child, 0)
    stale = runs.list_runs(session)[0]
    assert stale.find_state() == ("FAILED", "the process that started it died")
    assert sonde_cli("profile", process.pid, "-d", "0.2").returncode == 0
    assert [run.state for run in runs.list_runs(session)] == ["FAILED", "SUCCEEDED"]
