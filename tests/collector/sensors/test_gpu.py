"""GPUs: what NVML says becomes rows, and what it does wrong becomes a gap and nothing else."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sonde
from conftest import find_processes, wait_for
from sonde.collector.sensor_schedule import Guarded
from sonde.collector.sensors import _gpu_client, _gpu_users, gpu
from sonde.collector.sensors._files import Reader
from sonde.errors import Unavailable

IDLE = "import sonde, time; sonde.start(); print('ready', flush=True); time.sleep(600)"
Rows = list[dict[str, object]]


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture
def sensor(fake_nvml, reader: Reader) -> gpu.Sensor:
    return gpu.Sensor(reader)


def see(reader: Reader, sensor: gpu.Sensor, pid: int = 0, table: type = gpu.Gpu) -> Rows:
    """The rows of one reading; waits for NVML's process to come up."""

    def rows() -> Rows:
        reader.begin()
        found = [*sensor.read_machine(), *sensor.read_process(pid)]
        return [
            dict(zip(row.__annotations__, values, strict=True))
            for row, values in found
            if row is table
        ]

    return wait_for(rows)


def test_a_row_says_what_nvml_says(fake_nvml, reader: Reader, sensor: gpu.Sensor) -> None:
    fake_nvml({"gpus": [{
        "name": "H200", "uuid": "GPU-7", "util_pct": 97, "memory_util_pct": 61, "power_w": 650.5,
        "memory_used_bytes": 7 * 2**30, "memory_total_bytes": 141 * 2**30, "power_limit_w": 700,
        "sm_clock_mhz": 1700, "sm_clock_max_mhz": 1980, "memory_clock_mhz": 3201,
        "temperature_c": 66, "throttle": 0x4 | 0x40 | 0x1, "pcie_gen": 4, "pcie_gen_max": 5,
        "pcie_width": 8, "pcie_width_max": 16,
    }]})  # fmt: skip
    (row,) = see(reader, sensor)
    assert row.pop("t_ns") > 0
    assert row == {
        "interval_ns": None, "gpu": 0, "name": "H200", "uuid": "GPU-7", "util_pct": 97,
        "memory_util_pct": 61, "memory_used_bytes": 7 * 2**30, "memory_total_bytes": 141 * 2**30,
        "power_w": 650.5, "power_limit_w": 700.0, "sm_clock_mhz": 1700, "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 3201, "temperature_c": 66, "throttle": "sw_power_cap+hw_thermal",
        "pcie_gen": 4, "pcie_gen_max": 5, "pcie_width": 8, "pcie_width_max": 16,
        "pcie_received_bytes": None, "pcie_sent_bytes": None, "ecc_corrected": None,
        "ecc_uncorrected": None,
    }  # fmt: skip


def test_answers_are_received_where_a_thousand_files_are_open(
    fake_nvml, reader: Reader, sensor: gpu.Sensor
) -> None:
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2000:
        pytest.skip("no process may open as many files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(least, 2000), most))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        fake_nvml({"gpus": [{"util_pct": 97}]})
        assert [row["util_pct"] for row in see(reader, sensor)] == [97]
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


def test_amounts_are_those_of_the_interval(fake_nvml, reader: Reader, sensor: gpu.Sensor) -> None:
    fake_nvml({"gpus": [{"received_per_s": 1e9, "sent_per_s": 2e9}]})
    see(reader, sensor)
    (row,) = see(reader, sensor)
    assert row["pcie_received_bytes"] == pytest.approx(row["interval_ns"], rel=0.2, abs=2e6)
    assert row["pcie_sent_bytes"] == pytest.approx(2 * row["interval_ns"], rel=0.2, abs=4e6)
    assert row["ecc_corrected"] == 0


def test_a_counter_that_begins_anew_gives_no_amount(fake_nvml, reader: Reader, sensor) -> None:
    fake_nvml({"gpus": [{"received_per_s": 1e9, "sent_per_s": 1e9}]})
    see(reader, sensor)
    fake_nvml({"gpus": [{"received_per_s": 1, "sent_per_s": 1}]})
    (row,) = see(reader, sensor)
    assert row["pcie_received_bytes"] is None and row["pcie_sent_bytes"] is None


def test_one_value_that_fails_is_null_and_the_others_stay(
    fake_nvml, reader: Reader, sensor
) -> None:
    fake_nvml({"gpus": [{"util_pct": 5, "errors": ["nvmlDeviceGetPowerUsage"]}, {"power_w": 300}]})
    first, second = see(reader, sensor)
    assert first["power_w"] is None and first["util_pct"] == 5
    assert second["power_w"] == 300


def test_a_gpu_that_answers_nothing_has_a_row_of_nulls(fake_nvml, reader: Reader, sensor) -> None:
    fake_nvml({"gpus": [{"errors": ["all"]}]})
    (row,) = see(reader, sensor)
    assert set(row.values()) - {row["t_ns"], 0} == {None}


def test_a_lost_gpu_is_named_and_the_others_go_on(fake_nvml, reader: Reader, sensor) -> None:
    fake_nvml({"gpus": [{}, {"lost": True}, {}]})
    assert [row["gpu"] for row in see(reader, sensor)] == [0, 2]
    assert sensor.detail == "GPU 1: GPU is lost"
    fake_nvml({"gpus": [{}, {}, {}]})
    assert [row["gpu"] for row in see(reader, sensor)] == [0, 1, 2]
    assert sensor.detail is None


def test_a_gpu_that_is_added_begins_with_a_row_of_its_own(
    fake_nvml, reader: Reader, sensor
) -> None:
    fake_nvml({"gpus": [{}]})
    see(reader, sensor)
    fake_nvml({"gpus": [{}, {}]})
    old, new = see(reader, sensor)
    assert old["interval_ns"] > 0 and new["interval_ns"] is None


def test_what_the_library_prints_is_not_taken_for_an_answer(
    fake_nvml, reader: Reader, sensor
) -> None:
    fake_nvml({"do": "print", "gpus": [{"util_pct": 33}]})
    assert [row["util_pct"] for row in see(reader, sensor)] == [33]


def test_memory_is_told_apart_by_process(fake_nvml, reader: Reader, sensor, start) -> None:
    child = start("import time; print('ready', flush=True); time.sleep(600)")
    fake_nvml({"gpus": [
        {"processes": [[os.getpid(), 100], [child.pid, 20], [2**22 - 1, 3], [2**22 - 2, 4]]},
        {"processes": [[child.pid, None]]}, {},
    ]})  # fmt: skip
    rows = see(reader, sensor, os.getpid(), gpu.GpuProcess)
    assert [(row["gpu"], row["process"], row["memory_bytes"]) for row in rows] == [
        (0, os.getpid(), 100), (0, child.pid, 20), (0, None, 7), (1, child.pid, None),
    ]  # fmt: skip


def test_a_process_that_nvml_does_not_name_is_known_by_the_driver_it_has_open(
    fake_nvml, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(_gpu_users, "_FIRST_S", 0.0)
    proc = tmp_path / "proc"
    files = proc / "50" / "fd"
    files.mkdir(parents=True)
    (proc / "loadavg").write_text("0.1 0.1 0.1 1/10 50\n")
    fields = ["S", "1", *["0"] * 9, "7", "5", *["0"] * 4, "1", "0", "7", "4096", "10"]
    (proc / "50" / "stat").write_text(f"50 (python) {' '.join(fields)} 0 0\n")
    for at, name in enumerate(("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia5", "/dev/null")):
        (files / str(at)).symlink_to(name)
    reader = Reader(str(proc))
    sensor = gpu.Sensor(reader)
    others = {"processes": [[2**22 - 1, 3]]}
    fake_nvml({"gpus": [{"minor": 4, **others}, {"minor": 5, **others}]})

    def look() -> list[tuple[object, ...]]:
        rows = see(reader, sensor, 50, gpu.GpuProcess)
        return [(row["gpu"], row["process"], row["memory_bytes"]) for row in rows]

    assert look() == [(0, None, 3), (1, None, 3)]  # it asks how the GPUs are
    (files / "9").symlink_to("/dev/nvidia-uvm")
    maps = proc / "50" / "maps"
    maps.write_text("7f00-7f01 rw-s 00000000 00:06 478    /dev/nvidiactl\n")
    assert look() == [(0, None, 3), (1, None, 3)]  # it asked CUDA whether there are any
    maps.write_text("7f00-7f02 rw-s 00000000 00:06 479    /dev/nvidia-uvm\n")
    assert look() == [(0, None, 3), (1, None, 3), (1, 50, None)]
    (files / "9").unlink()
    assert look()[-1] == (1, 50, None)  # it was seen to compute
    reader.close()


# ---- what goes wrong --------------------------------------------------------------------------


def until(guarded: Guarded, reader: Reader, is_so: Callable[[Rows], object]) -> object:
    """Reader, with the clock of the guard going fast, until it is so."""
    fast_s = iter(range(0, 10**9, 60))

    def attempt() -> object:
        reader.begin()
        machine, _own = guarded.read([0], next(fast_s))
        return is_so([dict(zip(gpu.Gpu.__annotations__, v, strict=True)) for _, v in machine])

    return wait_for(attempt)


@pytest.mark.parametrize(
    ("what", "state", "said"),
    [
        ("crash", "failed", f"signal {signal.SIGABRT}"),
        ("fail", "unavailable", "NVML: Unknown Error"),
        ("hang", "failed", "has not answered"),
    ],
)
def test_a_library_that_is_ill_is_reported_and_comes_back(
    fake_nvml, reader: Reader, monkeypatch, what: str, state: str, said: str
) -> None:
    monkeypatch.setattr(_gpu_client, "_LATE_S", 0.2)
    guarded = Guarded("gpu", reader)
    until(guarded, reader, lambda rows: rows)
    fake_nvml({"do": what, "gpus": [{}]})
    until(guarded, reader, lambda _rows: guarded.status[0] == state)
    assert said in str(guarded.status[1])
    fake_nvml({"gpus": [{"util_pct": 77}]})
    assert until(guarded, reader, lambda rows: rows and rows[0]["util_pct"] == 77)
    assert guarded.status == ("on", None)


def test_without_pynvml_it_says_how_to_get_it(reader: Reader, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    monkeypatch.setenv("SONDE_NVML", str(tmp_path))
    sensor = gpu.Sensor(reader)
    with pytest.raises(Unavailable, match="pip install nvidia-ml-py"):
        see(reader, sensor)


def test_without_a_driver_no_process_is_started(reader: Reader, monkeypatch) -> None:
    monkeypatch.setattr(_gpu_client, "_SIGNS", ())
    sensor = gpu.Sensor(reader)
    reader.begin()
    with pytest.raises(Unavailable, match="no NVIDIA driver"):
        list(sensor.read_machine())


def test_a_call_that_hangs_does_not_stop_the_rest(fake_nvml, start, root: Path) -> None:
    fake_nvml({"gpus": [{"util_pct": 10}]})
    job = start(IDLE, SONDE_HOST_EVERY="0.1")

    def ask(sql: str) -> Rows:
        return sonde.open(str(job.pid)).query(sql).to_pylist()

    def count(table: str) -> int:
        tables = "SELECT COUNT(*) AS n FROM information_schema.tables WHERE table_schema = 'system'"
        known = ask(f"{tables} AND table_name = '{table}'")[0]["n"]
        return int(str(ask(f"SELECT COUNT(*) AS n FROM system.{table}")[0]["n"])) if known else 0

    wait_for(lambda: count("gpu") > 1)
    fake_nvml({"do": "hang", "gpus": [{}]})
    before = count("cpu")
    wait_for(lambda: count("cpu") > before + 10)
    source = "SELECT state, detail FROM sonde.source WHERE source = 'gpu'"
    failed = wait_for(lambda: [row for row in ask(source) if row["state"] == "failed"])
    assert "has not answered" in failed[0]["detail"]
    fake_nvml({"gpus": [{"util_pct": 88}]})
    wait_for(lambda: ask("SELECT 1 FROM system.gpu WHERE util_pct = 88"))
    assert ask(source)[0]["state"] == "on"


def test_its_process_ends_with_the_collector(fake_nvml, start, root: Path) -> None:
    job = start(IDLE)
    wait_for(lambda: [p for p in find_processes(str(root)) if find_children(p)])
    # Several may start; all but one give way.
    wait_for(lambda: len(find_processes(str(root))) == 1)
    (collector,) = find_processes(str(root))
    (child,) = find_children(collector)
    os.kill(collector, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{child}"))
    assert job.poll() is None


def find_children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_eight_gpus_are_eight_rows(fake_nvml, reader: Reader, sensor) -> None:
    fake_nvml({"gpus": [{"util_pct": 10 * index} for index in range(8)]})
    rows = see(reader, sensor)
    assert [(row["gpu"], row["util_pct"]) for row in rows] == [(n, 10 * n) for n in range(8)]


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA GPU here")
def test_values_agree_with_nvidia_smi(reader: Reader) -> None:
    pytest.importorskip("pynvml")
    sensor = gpu.Sensor(reader)
    see(reader, sensor)
    asked = "index,uuid,memory.total,clocks.max.sm,pcie.link.gen.max,enforced.power.limit"
    shown = subprocess.run(
        ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True, timeout=240,
    ).stdout.splitlines()  # fmt: skip
    begin = time.monotonic()
    rows = see(reader, sensor)
    assert time.monotonic() - begin < 60 and len(rows) == len(shown)
    for row, line in zip(rows, shown, strict=True):
        index, uuid, total_mib, clock, gen, watts = (word.strip() for word in line.split(","))
        assert (row["gpu"], row["uuid"]) == (int(index), uuid)
        assert row["memory_total_bytes"] == pytest.approx(int(total_mib) * 2**20, abs=2**20)
        assert row["sm_clock_max_mhz"] == int(clock) and row["pcie_gen_max"] == int(gen)
        assert row["power_limit_w"] == pytest.approx(float(watts), abs=0.1)
        assert 0 <= row["util_pct"] <= 100 and row["memory_used_bytes"] > 0
