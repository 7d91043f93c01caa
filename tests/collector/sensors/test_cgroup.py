"""Cgroups of every layout: version 1, 2, both, none, and a container's own as the root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.collector.sensors import cgroup, pressure
from sonde.collector.sensors._files import Reader

Row = dict[str, object]
PID = os.getpid()  # for its affinity, which is the kernel's word and no file


class Machine:
    """A /proc and /sys that a test makes up."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_ns = folder, 10**9
        self.write("proc/loadavg", "0 0 0 1/1 1")
        self.reader = Reader(str(folder / "proc"), str(folder / "sys"), clock=lambda: self.now_ns)
        self._cgroup, self._pressure = cgroup.Sensor(self.reader), pressure.Sensor(self.reader)

    def write(self, path: str, text: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def mount(self, *lines: str, is_in: str) -> None:
        """Mounts as `ROOT FOLDER KIND OPTIONS`; and what /proc/PID/cgroup says."""
        shown = []
        for line in lines:
            root, folder, kind, options = line.split()
            shown.append(f"30 20 0:1 {root} {self.folder}/{folder} rw - {kind} {kind} rw,{options}")
        self.write("proc/self/mountinfo", "\n".join(shown) + "\n")
        self.write(f"proc/{PID}/cgroup", is_in)

    def see(self, passed_s: float = 1.0, pid: int = PID) -> Row:
        self.reader.begin()
        self.now_ns += int(passed_s * 1e9)
        ((_, values),) = self._cgroup.read_process(pid)
        return dict(zip(cgroup.Cgroup.__annotations__, values, strict=True))

    def see_pressure(self) -> dict[tuple[object, object], Row]:
        self.reader.begin()
        self.now_ns += 10**9
        names = pressure.Pressure.__annotations__
        rows = [dict(zip(names, v, strict=True)) for _, v in self._pressure.read_process(PID)]
        return {(row["scope"], row["resource"]): row for row in rows}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.reader.close()


def write_unified(machine: Machine, folder: str, n: int = 0) -> None:
    """A cgroup of version 2, `n` seconds later."""
    machine.write(f"{folder}/cpu.stat", (
        f"usage_usec {5_000_000 + n * 900_000}\nuser_usec {4_000_000 + n * 700_000}\n"
        f"system_usec {1_000_000 + n * 200_000}\nnr_periods {10 + 10 * n}\n"
        f"nr_throttled {2 + 4 * n}\nthrottled_usec 1\n"
    ))  # fmt: skip
    machine.write(f"{folder}/cpu.max", "150000 100000\n")
    machine.write(f"{folder}/memory.stat", "anon 1\n")
    machine.write(f"{folder}/memory.current", "1000\n")
    machine.write(f"{folder}/memory.max", "max\n")
    machine.write(f"{folder}/memory.peak", "3000\n")
    machine.write(f"{folder}/memory.events", f"low 0\noom 9\noom_kill {n}\n")
    machine.write(f"{folder}/io.stat", (
        f"8:0 rbytes={100 + 50 * n} wbytes={10 + 5 * n} rios=1 wios=1 dbytes=0 dios=0\n"
        f"253:0 rbytes={100 + 50 * n} wbytes={10 + 5 * n} rios=1 wios=1 dbytes=0 dios=0\n"
        "7:0\n"
    ))  # fmt: skip
    machine.write(f"{folder}/io.pressure", (
        f"some avg10=0 avg60=0 avg300=0 total={7 + 250_000 * n}\n"
        f"full avg10=0 avg60=0 avg300=0 total={7 + 100_000 * n}\n"
    ))  # fmt: skip


def write_first(machine: Machine, base: str, path: str, n: int = 0) -> None:
    """The same of version 1."""
    machine.write(f"{base}/cpuacct{path}/cpuacct.usage_user", f"{4 * 10**9 + n * 700_000_000}\n")
    machine.write(f"{base}/cpuacct{path}/cpuacct.usage_sys", f"{10**9 + n * 200_000_000}\n")
    machine.write(f"{base}/cpu{path}/cpu.cfs_quota_us", "150000\n")
    machine.write(f"{base}/cpu{path}/cpu.cfs_period_us", "100000\n")
    machine.write(
        f"{base}/cpu{path}/cpu.stat",
        f"nr_periods {10 + 10 * n}\nnr_throttled {2 + 4 * n}\nthrottled_time 1\n",
    )
    machine.write(f"{base}/memory{path}/memory.usage_in_bytes", "1000\n")
    machine.write(f"{base}/memory{path}/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write(f"{base}/memory{path}/memory.max_usage_in_bytes", "3000\n")
    machine.write(
        f"{base}/memory{path}/memory.oom_control",
        f"oom_kill_disable 0\nunder_oom 0\noom_kill {n}\n",
    )
    machine.write(f"{base}/blkio{path}/blkio.throttle.io_service_bytes", (
        f"8:0 Read {100 + 50 * n}\n8:0 Write {10 + 5 * n}\n8:0 Sync 3\n8:0 Total 999\nTotal 999\n"
    ))  # fmt: skip


# What one second later shows, in every layout.
USE = {
    "interval_ns": 10**9, "user_pct": 70.0, "system_pct": 20.0, "throttled_pct": 40.0,
    "cpu_limit": 1.5, "memory_bytes": 1000, "memory_limit_bytes": None, "memory_peak_bytes": 3000,
    "oom_kills": 1, "read_bytes": 50, "written_bytes": 5,
}  # fmt: skip


def check(row: Row, version: int, path: str) -> None:
    expected = {**USE, "version": version, "path": path}
    expected["allowed_cores"] = len(os.sched_getaffinity(0))
    assert {key: row[key] for key in expected} == expected


def test_version_2(machine: Machine) -> None:
    machine.mount("/ cg cgroup2 nsdelegate", is_in="0::/user/job\n")
    (machine.folder / "sys/dev/block/253:0/slaves/sda").mkdir(parents=True)  # it lies on 8:0
    write_unified(machine, "cg/user/job")
    first = machine.see()
    assert first["interval_ns"] is None and first["memory_bytes"] == 1000
    write_unified(machine, "cg/user/job", 1)
    check(machine.see(), 2, "/user/job")


def test_version_1(machine: Machine) -> None:
    machine.mount(
        "/ cg/cpu cgroup cpu", "/ cg/cpuacct cgroup cpuacct", "/ cg/memory cgroup memory",
        "/ cg/blkio cgroup blkio",
        is_in="4:memory:/job\n3:blkio:/job\n2:cpuacct:/job\n1:cpu:/job\n",
    )  # fmt: skip
    write_first(machine, "cg", "/job")
    machine.see()
    write_first(machine, "cg", "/job", 1)
    check(machine.see(), 1, "/job")


def test_both_versions_at_once(machine: Machine) -> None:
    machine.mount(
        "/ cg/unified cgroup2 rw", "/ cg/cpu cgroup cpu", "/ cg/cpuacct cgroup cpuacct",
        "/ cg/memory cgroup memory", "/ cg/blkio cgroup blkio",
        is_in="4:memory:/job\n3:blkio:/job\n2:cpuacct:/job\n1:cpu:/job\n0::/scope\n",
    )  # fmt: skip
    write_first(machine, "cg", "/job")
    machine.write("cg/unified/scope/cgroup.procs", "")
    machine.see()
    write_first(machine, "cg", "/job", 1)
    check(machine.see(), 1, "/job")


def test_in_a_container_with_a_namespace_of_its_own(machine: Machine) -> None:
    machine.mount("/ cg cgroup2 rw", is_in="0::/\n")
    (machine.folder / "sys/dev/block/253:0/slaves/sda").mkdir(parents=True)
    write_unified(machine, "cg")
    machine.see()
    write_unified(machine, "cg", 1)
    check(machine.see(), 2, "/")


def test_in_a_container_that_sees_the_machines_names(machine: Machine) -> None:
    mounts = ("cpu", "cpuacct", "memory", "blkio")
    machine.mount(
        *(f"/docker/abc cg/{name} cgroup {name}" for name in mounts),
        is_in="".join(f"{n}:{name}:/docker/abc\n" for n, name in enumerate(mounts, 1)),
    )
    write_first(machine, "cg", "")
    machine.see()
    write_first(machine, "cg", "", 1)
    check(machine.see(), 1, "/docker/abc")


def test_no_cgroups_at_all(machine: Machine) -> None:
    machine.write("proc/self/mountinfo", "30 20 0:1 / / rw - ext4 /dev/sda rw\n")
    machine.write(f"proc/{PID}/cgroup", "")
    machine.see()
    row = machine.see()
    assert (row["version"], row["memory_bytes"], row["user_pct"]) == (0, None, None)
    assert row["allowed_cores"] == len(os.sched_getaffinity(0)) and row["interval_ns"] == 10**9


def test_the_tightest_limit_above_counts(machine: Machine) -> None:
    machine.mount("/ cg cgroup2 rw", is_in="0::/pod/container\n")
    write_unified(machine, "cg/pod/container")
    machine.write("cg/pod/cpu.max", "50000 100000\n")
    machine.write("cg/pod/memory.max", "2000\n")
    machine.write("cg/pod/container/memory.max", "5000\n")
    row = machine.see()
    assert (row["cpu_limit"], row["memory_limit_bytes"]) == (0.5, 2000)


def test_a_process_that_moves_to_another_cgroup_begins_anew(machine: Machine) -> None:
    machine.mount("/ cg cgroup2 rw", is_in="0::/one\n")
    write_unified(machine, "cg/one", 5)
    write_unified(machine, "cg/two", 9)
    machine.see()
    machine.write(f"proc/{PID}/cgroup", "0::/two\n")
    row = machine.see()
    assert (row["path"], row["user_pct"], row["read_bytes"]) == ("/two", None, None)


@pytest.mark.parametrize(
    ("init", "folder"),
    (("0::/init.scope\n", "cg"), ("0::/\n", "cg"), ("0::/docker/one\n", "cg/docker/one"),
     ("0::/docker/one/init.scope\n", "cg/docker/one")),
)  # fmt: skip
def test_the_whole_is_the_cgroup_of_process_1_not_our_own(
    machine: Machine, init: str, folder: str
) -> None:
    machine.mount("/ cg cgroup2 rw", is_in="")
    machine.write("proc/1/cgroup", init)
    machine.write("proc/self/cgroup", "0::/user.slice/login\n")
    write_unified(machine, "cg/user.slice/login")
    for n in range(2):
        write_unified(machine, folder, n)
        row = machine.see(pid=0)
    assert (row["user_pct"], row["system_pct"], row["read_bytes"]) == (70.0, 20.0, 100)
    assert f"cg{row['path']}".rstrip("/") == folder


def test_the_root_of_version_1_is_the_machine_and_has_no_memory_of_its_own(
    machine: Machine,
) -> None:
    machine.mount(*(f"/ cg/{name} cgroup {name}" for name in ("cpuacct", "memory", "blkio")),
                  is_in="1:cpuacct:/\n2:memory:/\n3:blkio:/\n")  # fmt: skip
    for name in ("cpuacct", "memory", "blkio"):
        machine.write(f"cg/{name}/release_agent", "\n")
    for n in range(2):
        write_first(machine, "cg", "", n)
        row = machine.see()
    assert (row["user_pct"], row["memory_bytes"], row["read_bytes"]) == (70.0, None, None)


def test_pressure_is_the_share_of_the_interval(machine: Machine) -> None:
    machine.mount("/ cg cgroup2 rw", is_in="0::/job\n")
    for n in range(2):
        write_unified(machine, "cg/job", n)
        machine.write(
            "proc/pressure/cpu", f"some avg10=9 avg60=9 avg300=9 total={5 + n * 500_000}\n"
        )
        found = machine.see_pressure()
    assert found["machine", "cpu"]["some_pct"] == 50 and found["machine", "cpu"]["full_pct"] is None
    assert found["cgroup", "io"]["some_pct"] == 25 and found["cgroup", "io"]["full_pct"] == 10
    assert set(found) == {("machine", "cpu"), ("cgroup", "io")}


def test_the_cgroup_of_this_very_process_can_be_read() -> None:
    reader = Reader()
    sensor = cgroup.Sensor(reader)
    for _ in range(2):
        reader.begin()
        rows = list(sensor.read_process(os.getpid()))
    reader.close()
    ((_, values),) = rows
    row = dict(zip(cgroup.Cgroup.__annotations__, values, strict=True))
    said = Path("/proc/self/cgroup").read_text()
    assert row["path"] is None or row["path"] in said
    assert row["allowed_cores"] == len(os.sched_getaffinity(0))
    assert row["version"] in (0, 1, 2) and row["interval_ns"] > 0
