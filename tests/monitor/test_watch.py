"""`sonde monitor` as a user runs it: how it starts, what it keeps out, and every way it ends."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from conftest import TIMEOUT_S, find_processes, wait_for
from sonde.errors import Error
from sonde.monitor.command import Command
from support.page_file import read_answers
from support.zygote import Forked, Zygote

QUICK = ("--every", "0.1s", "--piece", "1")
PYTHON = sys.executable
SPIN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
# Drawing takes longer than all the rest; that pictures are missing is a line of the report.
WITHOUT_PICTURES = """
import sys
sys.modules["matplotlib"] = None
from sonde.cli import main
sys.exit(main())
"""
# As the process that forks does it: sonde is imported before the program of that name.
START_ALONE = """
import runpy, sys
import sonde.cli
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
Start = Callable[..., Forked | subprocess.Popen[str]]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder in which the monitor runs."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def monitor(work: Path, tmp_path: Path, cli_zygote: Zygote) -> Iterator[Start]:
    """Start `sonde monitor --out out …`; it is killed when the test ends."""
    started: list[Forked | subprocess.Popen[str]] = []
    program = tmp_path / "sonde.py"
    program.write_text(WITHOUT_PICTURES)

    def monitor(*words: object) -> Forked | subprocess.Popen[str]:
        argv = [str(program), "monitor", "-o", "out", *QUICK, *map(str, words)]
        # The last DuckDB for 3.10 starts a thread when it is imported: no process to fork.
        if sys.version_info < (3, 11):
            command = [sys.executable, "-c", START_ALONE, *argv]
            pipe = subprocess.PIPE
            started.append(subprocess.Popen(command, cwd=work, stdout=pipe, stderr=pipe, text=True))
            return started[-1]
        started.append(cli_zygote.start(argv, dict(os.environ), str(work)))
        return started[-1]

    yield monitor
    for process in started:
        process.kill()
        process.communicate()


def read_csv(work: Path, out: str = "out") -> list[dict[str, str]]:
    path = work / out / "log_result.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read_report(work: Path, out: str = "out") -> dict[str, object]:
    return json.loads((work / out / "report.json").read_text())


def finish(process: Forked) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def wait_rows(work: Path, count: int = 3) -> None:
    wait_for(lambda: len(read_csv(work)) >= count)


def require_whole(work: Path) -> dict[str, object]:
    """A report in all its forms."""
    folder = work / "out"
    assert (folder / "report.md").read_text().startswith("# Hardware under ")
    assert "</html>" in (folder / "report.html").read_text()
    return read_report(work)


# ---- ways to end ---------------------------------------------------------------------------------


def test_it_ends_after_its_time_with_a_report(work: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "sonde", "monitor", "-o", "out", "--every", "0.6s", "--duration", "1.2s"], cwd=work,
        capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    code, out, err = done.returncode, done.stdout, done.stderr
    said = require_whole(work)
    assert len(said["pictures"]) == 5 and all(
        (work / "out" / one).exists() for one in said["pictures"]
    )
    assert (code, err) == (0, "") and "its time was over (0.02 min)" in said["reason"]
    # All of the time that was asked for: the last reading is whole half a period after the end.
    assert 0.9e9 <= said["duration_ns"] < 30e9 and said["statistics"]["readings"] == len(
        read_csv(work)
    )
    assert "80th percentile" in out and out.strip().endswith("report.html")


@pytest.mark.parametrize("where", (".", "out"))
def test_a_flag_ends_it_with_a_report(monitor: Start, work: Path, where: str) -> None:
    process = monitor()
    wait_rows(work)
    (work / where / "stop.flag").touch()
    assert finish(process)[0] == 0
    assert read_report(work)["reason"] == "there was a stop.flag"
    assert require_whole(work)["statistics"]["cpu_pct"]["mean"] is not None


def test_the_flag_of_the_last_time_does_not_end_it(monitor: Start, work: Path) -> None:
    (work / "out").mkdir()
    (work / "stop.flag").touch()
    (work / "out" / "stop.flag").touch()
    (work / "out" / "report.json").write_text("{}")
    process = monitor()
    wait_rows(work)
    assert process.poll() is None
    assert not (work / "stop.flag").exists() and not (work / "out" / "report.json").exists()


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT))
def test_a_signal_ends_it_with_a_report(monitor: Start, work: Path, number: int) -> None:
    process = monitor("--piece", "10")
    wait_rows(work, 1)
    process.send_signal(number)
    code, _out, err = finish(process)
    assert (code, err) == (0, "")
    assert require_whole(work)["reason"] == "it was interrupted"  # before the first window was over


def test_a_second_signal_ends_it_at_once(monitor: Start, work: Path) -> None:
    process = monitor()
    wait_rows(work)
    process.send_signal(signal.SIGSTOP)  # so that both are there when it goes on
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    code, out, err = finish(process)
    assert code in (130, 143) and (out, err) == ("", "")
    assert not (work / "out" / "report.json").exists() and len(read_csv(work)) >= 3


def test_stopped_before_anything_was_measured_there_is_a_report(monitor: Start, work: Path) -> None:
    process = monitor("--wait-for", "cpu>99999")
    wait_for(lambda: (work / "out" / "log_result.csv").exists())
    process.send_signal(signal.SIGTERM)
    code, out, _err = finish(process)
    said = require_whole(work)
    assert code == 0 and said["statistics"]["readings"] == 0 and read_csv(work) == []
    assert "it ended before measuring began" in out


def test_killed_it_leaves_a_csv_that_can_be_read(monitor: Start, work: Path) -> None:
    process = monitor()
    wait_rows(work, 5)
    process.kill()
    process.wait()
    rows = read_csv(work)
    assert len(rows) >= 5 and all(None not in row.values() and None not in row for row in rows)
    assert all(float(row["cpu_usage(%)"]) >= 0 for row in rows)


def test_it_ends_with_the_process_that_it_watches(monitor: Start, work: Path, start) -> None:
    job = start("print('ready', flush=True); import time; time.sleep(600)")
    process = monitor("--pid", job.pid)
    wait_rows(work)
    job.kill()
    job.wait()
    assert finish(process)[0] == 0
    said = require_whole(work)
    assert said["reason"] == f"process {job.pid} ended" and said["pid"] == job.pid
    assert said["statistics"]["memory_used_bytes"]["max"] > 2**20


# ---- a command -----------------------------------------------------------------------------------


def test_a_command_keeps_its_output_and_its_exit_code(monitor: Start, work: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    code, out, err = finish(monitor("--", PYTHON, "-c", code))
    assert (code, out) == (7, "out\n")
    assert err.startswith("err\n") and "report.html" in err
    assert require_whole(work)["reason"] == "the command ended"


def test_a_command_killed_by_a_signal_is_128_and_more(monitor: Start, work: Path) -> None:
    code, out, _err = finish(monitor("--", "/bin/sh", "-c", "kill -9 $$"))
    assert (code, out) == (137, "")
    require_whole(work)


def test_a_command_is_recorded_and_its_line_known(monitor: Start, work: Path) -> None:
    (work / "spin.py").write_text(SPIN)
    assert finish(monitor("--", PYTHON, "spin.py", "1.5"))[0] == 0
    said = require_whole(work)
    assert said["command"] == [PYTHON, "spin.py", "1.5"]
    processes = said["advice"]["processes"]
    assert len(processes) == 2, processes  # the monitor's own session, and the command's
    assert said["statistics"]["cpu_pct"]["max"] > 10
    shown = read_answers((work / "out" / "report.html").read_text())["about"]["processes"]
    assert [one["monitor"] for one in shown] == [False, True]  # its stacks are on the page, too


def test_signals_go_to_the_command_and_it_decides(monitor: Start, work: Path) -> None:
    code = """
import signal, sys, time
def leave(number, frame):
    print("leaving", number, flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
print("ready", flush=True)
time.sleep(600)
"""
    process = monitor("--", PYTHON, "-c", code)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "usr1\n"
    process.send_signal(signal.SIGTERM)
    code, out, _err = finish(process)
    assert (code, out) == (3, f"leaving {signal.SIGTERM:d}\n")
    require_whole(work)


def test_when_the_time_is_over_the_command_goes_on(monitor: Start, work: Path) -> None:
    code = "import os, time, sys\nwhile not os.path.exists('out/report.html'): time.sleep(0.05)\nsys.exit(5)"
    code, _out, _err = finish(monitor("--duration", "600ms", "--", PYTHON, "-c", code))
    assert code == 5 and "its time was over" in read_report(work)["reason"]


def test_there_is_no_such_command(monitor: Start, work: Path) -> None:
    code, out, err = finish(monitor("--", "no-such-program"))
    assert (code, out, err) == (1, "", "sonde: no-such-program: there is no such program\n")


def test_bytes_are_counted_once_and_up_to_the_end_of_a_command(monitor: Start, work: Path) -> None:
    size = 64 * 2**20
    job = ("dd", "if=/dev/zero", "of=big", "bs=1M", "count=64", "conv=fsync")
    assert finish(monitor("--", *job))[0] == 0
    volume = read_report(work)["statistics"]["written_bytes"]["volume_bytes"]
    if not volume:
        pytest.skip("this file system counts no bytes")
    assert volume == pytest.approx(size, rel=0.01)
    rows = read_csv(work)
    times = [0.0, *(float(row["timestamp"]) for row in rows)]
    written = [float(row["IO_write(KiByte/s)"] or 0) for row in rows]
    spans = [b - a for a, b in pairwise(times)]
    assert sum(w * s for w, s in zip(written, spans, strict=True)) * 1024 == pytest.approx(
        size, rel=0.03
    )


def test_trouble_of_ours_leaves_the_exit_code_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with Command(["/bin/sh", "-c", "exit 9"], dict(os.environ)) as job:
        job.start()
        raise Error("the disk is full")
    assert job.code == 9 and capfd.readouterr().err == "sonde: the disk is full\n"


def test_trouble_before_the_command_began_is_told(root: Path) -> None:
    with pytest.raises(Error), Command(["/bin/true"], {}):
        raise Error("nothing has begun")


# ---- when it begins ------------------------------------------------------------------------------


def test_waiting_for_a_gpu_keeps_the_start_out(monitor: Start, work: Path, fake_nvml) -> None:
    fake_nvml({"gpus": [{"util_pct": 3}]})
    process = monitor("--wait-for", "gpu>20")
    lock = work / "out" / ".monitor.lock"
    wait_for(lambda: lock.exists() and "waiting" in lock.read_text())
    assert read_csv(work) == []
    fake_nvml({"gpus": [{"util_pct": 91}]})
    wait_rows(work, 5)
    process.terminate()
    assert finish(process)[0] == 0
    said = read_report(work)
    util = said["statistics"]["gpus"][0]["util_pct"]
    assert (util["min"], util["mean"], util["max"]) == (91, 91, 91)
    assert any("when gpu>20" in line for line in said["about"])
    # A reading that came late under load is an empty cell.
    assert {row["gpu_usage_0"] for row in read_csv(work)} - {""} == {"91"}


def test_a_delay_keeps_the_start_out(monitor: Start, work: Path) -> None:
    process = monitor("--delay", "2s", "--duration", "1.2s", "--", "/bin/sh", "-c", "sleep 6")
    assert finish(process)[0] == 0
    said = read_report(work)
    session = json.loads(Path(said["session"], "meta.json").read_text())
    assert said["begin_t_ns"] - session["monotonic_ns"] >= 2 * 10**9
    assert said["statistics"]["readings"] == len(read_csv(work)) > 0
    assert float(read_csv(work)[0]["timestamp"]) < 2


# ---- GPUs ----------------------------------------------------------------------------------------


def test_every_gpu_has_its_columns(monitor: Start, work: Path, fake_nvml) -> None:
    fake_nvml({"gpus": [{"util_pct": 10 * at, "memory_used_bytes": at * 2**30} for at in range(3)]})
    process = monitor()
    wait_for(lambda: len([row for row in read_csv(work) if row.get("gpu_usage_2")]) > 3)
    process.terminate()
    code, out, _err = finish(process)
    row = [row for row in read_csv(work) if row["gpu_usage_2"]][-1]
    assert code == 0 and (row["gpu_usage_2"], row["gpu_mem_used_2"], row["gpu_mem_total_2"]) == (
        "20",
        "2",
        "80",
    )
    assert "Number of GPUs: 3" in out and len(read_report(work)["statistics"]["gpus"]) == 3


def test_chosen_gpus_alone_have_columns(monitor: Start, work: Path, fake_nvml) -> None:
    fake_nvml({"gpus": [{}, {"util_pct": 50}]})
    process = monitor("--gpus", "1")
    wait_for(lambda: any(row["gpu_usage_1"] == "50" for row in read_csv(work)))
    process.terminate()
    assert finish(process)[0] == 0
    assert [gpu["gpu"] for gpu in read_report(work)["statistics"]["gpus"]] == [1]
    assert "gpu_usage_0" not in read_csv(work)[0]


def test_the_gpus_of_the_job_are_found(monitor: Start, work: Path, fake_nvml, start) -> None:
    job = start("print('ready', flush=True); import time; time.sleep(600)")
    fake_nvml(
        {"gpus": [{"processes": [[1, 2**30]]}, {"processes": [[job.pid, 2**30]], "util_pct": 7}]}
    )
    process = monitor("--pid", job.pid, "--gpus", "mine")
    wait_for(lambda: any(row.get("gpu_usage_1") == "7" for row in read_csv(work)))
    process.terminate()
    assert finish(process)[0] == 0
    assert [gpu["gpu"] for gpu in read_report(work)["statistics"]["gpus"]] == [1]
    assert "gpu_usage_0" not in read_csv(work)[0]


def test_nvml_that_dies_leaves_empty_cells_and_a_word(
    monitor: Start, work: Path, fake_nvml
) -> None:
    fake_nvml({"gpus": [{"util_pct": 60}]})
    process = monitor()
    wait_for(lambda: [row.get("gpu_usage_0") for row in read_csv(work)].count("60") > 2)
    fake_nvml({"do": "crash", "gpus": []})
    wait_for(lambda: [row.get("gpu_usage_0") for row in read_csv(work)[-3:]] == [""] * 3)
    process.terminate()
    code, out, err = finish(process)
    said = require_whole(work)
    assert (code, err) == (0, "") and said["statistics"]["gpus"][0]["util_pct"]["mean"] == 60
    assert any(line.startswith("GPU 0 is unknown in ") for line in said["missing"])
    assert all(row["cpu_usage(%)"] for row in read_csv(work))
    assert "not measured: GPU 0" in out


# ---- in the background ---------------------------------------------------------------------------


def test_detached_it_measures_until_a_flag_comes(work: Path, sonde_cli) -> None:
    out = work / "out"
    done = sonde_cli("monitor", "-o", out, *QUICK, "--detach")
    assert done.returncode == 0, done.stderr
    pid = int((out / ".monitor.lock").read_text().split()[0])
    assert f"process {pid} is measuring into {out}" in done.stdout and os.path.exists(
        f"/proc/{pid}"
    )
    try:
        again = sonde_cli("monitor", "-o", out, *QUICK)
        assert again.returncode == 1 and f"process {pid} is measuring into {out}" in again.stderr
        twice = sonde_cli("monitor", "-o", out, *QUICK, "--detach")
        assert twice.returncode == 1 and f"process {pid}" in twice.stderr
        wait_rows(work)
        (out / "stop.flag").touch()
        wait_for(lambda: (out / "report.html").exists())
        assert read_report(work)["reason"] == "there was a stop.flag"
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
    finally:
        for left in find_processes(str(out)):
            os.kill(left, signal.SIGKILL)
    assert (out / "log.txt").read_text().strip().endswith("report.html")


def test_detached_trouble_is_told_at_once(work: Path, sonde_cli, root: Path) -> None:
    root.mkdir(mode=0o700)
    root.chmod(0o722)  # a root that others can write is refused
    done = sonde_cli("monitor", "-o", work / "out", "--detach")
    assert done.returncode == 1 and "other users can write to" in done.stderr


# ---- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    (
        (["--wait-for", "gpu"], "known: cpu"), (["--every", "1ms"], "outside 0.1"),
        (["--gpus", "first"], "write 0,1"), (["--duration", "0"], "is not a time"),
        (["--delay", "x"], "is not a time"), (["--pid", "999999999"], "there is no process"),
        (["--pid", "1", "--", "true"], "leave it out"), (["--detach", "--", "true"], "leave it out"),
    ),
)  # fmt: skip
def test_wrong_usage_is_one_line_and_touches_nothing(
    work: Path, sonde_cli, words: list[str], said: str
) -> None:
    done = sonde_cli("monitor", "-o", work / "out", *words)
    assert done.returncode in (2, 3) and done.stdout == ""
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (work / "out").exists()


def test_a_terminal_sees_how_it_goes(work: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PYTHON, "-m", "sonde", "monitor", "-o", "out", *QUICK, "--duration", "1min"], cwd=work,
        stdout=subprocess.DEVNULL, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not (b"measuring" in seen and b"cpu " in seen and b" left" in seen):
            assert time.monotonic() < deadline, seen
            seen += os.read(ours, 4096)
        assert b"memory " in seen and "░".encode() in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
