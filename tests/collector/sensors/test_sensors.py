"""The sensors of the machine: processors, memory, disks, network."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde import plugins
from sonde.collector.sensors import cpu, disk, memory, network
from sonde.collector.sensors._files import Past, Reader

Rows = list[dict[str, object]]


class Machine:
    """A /proc and /sys that a test makes up, with a clock of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.now_ns = folder, 10**9
        self.reader = Reader(str(folder / "proc"), str(folder / "sys"), clock=lambda: self.now_ns)
        self.sensor = plugins.load("collector.sensors", name).Sensor(self.reader)

    def write(self, path: str, text: str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def see(self, table: type, pid: int = 0) -> Rows:
        """The rows of a reading one second later."""
        self.reader.begin()
        self.now_ns += 10**9
        found = [*self.sensor.read_machine(), *self.sensor.read_process(pid)]
        return [
            dict(zip(row.__annotations__, values, strict=True))
            for row, values in found
            if row is table
        ]


@pytest.fixture
def make_machine(tmp_path: Path):
    made = []

    def make(name: str) -> Machine:
        made.append(Machine(tmp_path, name))
        return made[-1]

    yield make
    for machine in made:
        machine.reader.close()


# ---- processors -------------------------------------------------------------------------------

STAT = """cpu  {both}
cpu0 {first}
cpu1 {second}
intr 5 4 3
ctxt {switches}
btime 1
processes 9
procs_running 3
procs_blocked 1
"""


def write_stat(machine: Machine, first: list[int], second: list[int], switches: int) -> None:
    both = [a + b for a, b in zip(first, second, strict=True)]
    lines = {"both": both, "first": first, "second": second}
    words = {name: " ".join(map(str, ticks)) for name, ticks in lines.items()}
    machine.write("proc/stat", STAT.format(**words, switches=switches))
    machine.write("proc/loadavg", "1.5 0.5 0.25 3/99 1234\n")


def test_processors_together_and_one_by_one(make_machine: Callable[[str], Machine]) -> None:
    machine = make_machine("cpu")
    # user nice system idle iowait irq softirq steal guest guest_nice
    write_stat(machine, [100, 0, 50, 800, 9, 0, 0, 0, 7, 0], [0, 0, 0, 999, 0, 0, 0, 0, 0, 0], 70)
    assert machine.see(cpu.Cpu) == []
    write_stat(
        machine, [150, 10, 70, 805, 14, 5, 5, 0, 9, 0], [0, 0, 0, 1049, 50, 0, 0, 0, 0, 0], 95
    )
    (row,) = machine.see(cpu.Cpu)
    assert row == {
        "t_ns": 3 * 10**9, "interval_ns": 10**9, "cores": 2, "busy_pct": 45.0, "user_pct": 30.0,
        "system_pct": 15.0, "iowait_pct": 27.5, "steal_pct": 0.0, "load1": 1.5, "load5": 0.5,
        "load15": 0.25, "max_core_pct": 90.0, "running": 3, "blocked": 1, "switches": 25,
    }  # fmt: skip
    write_stat(
        machine, [250, 10, 70, 805, 14, 5, 5, 0, 9, 0], [0, 0, 0, 1149, 50, 0, 0, 0, 0, 0], 95
    )
    first, second = machine.see(cpu.Core)
    assert (first["core"], first["busy_pct"], first["user_pct"]) == (0, 100.0, 100.0)
    assert (second["core"], second["busy_pct"]) == (1, 0.0)


def test_idle_time_that_goes_back_gives_no_negative_share(make_machine) -> None:
    machine = make_machine("cpu")
    write_stat(machine, [0, 0, 0, 500, 90, 0, 0, 0], [0, 0, 0, 500, 0, 0, 0, 0], 1)
    machine.see(cpu.Cpu)
    write_stat(machine, [40, 0, 0, 560, 85, 0, 0, 0], [0, 0, 0, 600, 0, 0, 0, 0], 1)
    (row,) = machine.see(cpu.Cpu)
    assert row["busy_pct"] == 20.0 and row["iowait_pct"] == 0.0


def test_a_processor_that_comes_back_begins_anew(make_machine) -> None:
    machine = make_machine("cpu")
    write_stat(machine, [10] * 8, [10] * 8, 1)
    machine.see(cpu.Cpu)
    write_stat(machine, [20] * 8, [20] * 8, 1)
    text = (machine.folder / "proc/stat").read_text()
    machine.write("proc/stat", "\n".join(x for x in text.splitlines() if "cpu1" not in x) + "\n")
    assert [row["core"] for row in machine.see(cpu.Core)] == [0]
    write_stat(machine, [30] * 8, [900] * 8, 1)
    assert [row["core"] for row in machine.see(cpu.Core)] == [0]
    write_stat(machine, [40] * 8, [910] * 8, 1)
    assert [row["core"] for row in machine.see(cpu.Core)] == [0, 1]


# ---- memory -----------------------------------------------------------------------------------


def write_memory(machine: Machine, swapped: int, faults: int) -> None:
    machine.write("proc/meminfo", (
        "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nBuffers: 5 kB\nCached: 300 kB\n"
        "SwapTotal: 50 kB\nSwapFree: 20 kB\nDirty: 7 kB\nWriteback: 1 kB\nHugePages_Total: 0\n"
    ))  # fmt: skip
    machine.write(
        "proc/vmstat", f"nr_free_pages 9\npswpin {swapped}\npswpout 5\npgmajfault {faults}\n"
    )


def test_memory_and_swapping(make_machine) -> None:
    machine = make_machine("memory")
    write_memory(machine, 3, 100)
    (row,) = machine.see(memory.Memory)
    assert row["interval_ns"] is None and row["swap_in_bytes"] is None
    write_memory(machine, 5, 104)
    (row,) = machine.see(memory.Memory)
    page = os.sysconf("SC_PAGE_SIZE")
    assert row == {
        "t_ns": 3 * 10**9, "total_bytes": 1024000, "available_bytes": 409600,
        "used_bytes": 614400, "swap_total_bytes": 51200, "swap_used_bytes": 30720,
        "interval_ns": 10**9, "cached_bytes": 305 * 1024, "dirty_bytes": 8 * 1024,
        "swap_in_bytes": 2 * page, "swap_out_bytes": 0, "major_faults": 4,
    }  # fmt: skip


# ---- disks --------------------------------------------------------------------------------------


def write_disks(machine: Machine, **disks: tuple[int, int, int, int, int]) -> None:
    lines = [
        f"8 0 {name} {reads} 0 {sectors_read} 1 {writes} 0 {sectors_written} 1 0 {busy_ms} 3"
        for name, (reads, sectors_read, writes, sectors_written, busy_ms) in disks.items()
    ]
    machine.write("proc/diskstats", "\n".join(lines) + "\n")


def test_each_byte_of_a_disk_is_counted_once(make_machine) -> None:
    machine = make_machine("disk")
    for name in ("sda", "dm-0", "loop0"):
        (machine.folder / f"sys/block/{name}/slaves").mkdir(parents=True)
    machine.write("sys/block/dm-0/slaves/sda", "")
    names = ("sda", "sda1", "dm-0", "loop0")  # a partition and a volume show the same bytes again
    write_disks(machine, **dict.fromkeys(names, (10, 100, 20, 200, 50)))
    assert machine.see(disk.Disk) == []
    write_disks(machine, **dict.fromkeys(names, (11, 104, 22, 210, 300)))
    assert machine.see(disk.Disk) == [{
        "t_ns": 3 * 10**9, "interval_ns": 10**9, "device": "sda", "read_bytes": 2048,
        "written_bytes": 5120, "reads": 1, "writes": 2, "busy_pct": 25.0,
    }]  # fmt: skip


def test_a_disk_that_is_plugged_in_again_begins_anew(make_machine) -> None:
    machine = make_machine("disk")
    (machine.folder / "sys/block/sda/slaves").mkdir(parents=True)
    write_disks(machine, sda=(10, 100, 20, 200, 50))
    machine.see(disk.Disk)
    write_disks(machine)
    assert machine.see(disk.Disk) == []
    write_disks(machine, sda=(1000, 1000, 1000, 1000, 1000))
    assert machine.see(disk.Disk) == []
    write_disks(machine, sda=(1001, 1000, 1000, 1000, 1000))
    assert [row["reads"] for row in machine.see(disk.Disk)] == [1]


def test_counters_that_wrap_or_restart_give_no_amount() -> None:
    past = Past()
    assert past.move("x", 10, [2**32 - 5]) is None
    assert past.move("x", 20, [5]) is None
    assert past.move("x", 30, [8]) == (10, [3])
    assert past.move("x", 30, [9]) is None  # the same instant: nothing can be per time


# ---- network ------------------------------------------------------------------------------------

NET = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes\n"


def test_interfaces_and_rdma_ports(make_machine) -> None:
    machine = make_machine("network")
    (machine.folder / "proc/77/ns").mkdir(parents=True)
    machine.write("proc/77/ns/net", "")
    for name, kind in (("lo", "772"), ("eth0", "1"), ("ib0", "32"), ("wlan0", "1")):
        machine.write(f"sys/class/net/{name}/type", kind)
    machine.write("sys/class/net/wlan0/wireless/x", "")
    (machine.folder / "sys/devices/virtual/net/docker0").mkdir(parents=True)
    machine.write("sys/devices/virtual/net/docker0/type", "1")
    os.symlink(
        machine.folder / "sys/devices/virtual/net/docker0",
        machine.folder / "sys/class/net/docker0",
    )
    port = "sys/class/infiniband/mlx5_0/ports/1/counters"
    for n in range(2):
        line = f"{100 + n} {10 + n} {n} {n} 0 0 0 0 {200 + 2 * n} {20 + n} {n} {n} 0 0 0 0"
        names = ("lo", "eth0", "ib0", "wlan0", "docker0")
        machine.write("proc/77/net/dev", NET + "".join(f"  {x}:{line}\n" for x in names))
        machine.write(f"{port}/port_rcv_data", f"{1000 + 25 * n}\n")
        machine.write(f"{port}/port_xmit_data", f"{1000 + 50 * n}\n")
        machine.write(f"{port}/port_rcv_packets", f"{n}\n")
        rows = machine.see(network.Network, 77)
    kinds = {row["interface"]: row["kind"] for row in rows}
    assert kinds == {
        "mlx5_0/1": "rdma", "lo": "loopback", "eth0": "ethernet", "ib0": "other",
        "wlan0": "wireless", "docker0": "virtual",
    }  # fmt: skip
    rdma, first = rows[0], rows[1]
    assert (rdma["received_bytes"], rdma["sent_bytes"], rdma["received_packets"]) == (100, 200, 1)
    assert (first["received_bytes"], first["sent_bytes"]) == (1, 2)
    assert (first["errors"], first["dropped"], first["interval_ns"]) == (2, 2, 10**9)


def test_what_goes_through_loopback_is_there() -> None:
    reader = Reader()
    sensor = network.Sensor(reader)
    reader.begin()
    list(sensor.read_process(os.getpid()))
    size = 2 * 2**20
    with socket.create_server(("127.0.0.1", 0)) as server:

        def receive() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=receive)
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(bytes(size))
        thread.join()
    reader.begin()
    rows = [dict(zip(network.Network.__annotations__, values, strict=True))
            for _, values in sensor.read_process(os.getpid())]  # fmt: skip
    reader.close()
    (row,) = [row for row in rows if row["kind"] == "loopback"]
    assert row["interface"] == "lo"
    # Others may use it, too; what we sent is there, with its headers.
    assert row["sent_bytes"] >= size and row["received_bytes"] >= size


# ---- reading ------------------------------------------------------------------------------------


def test_a_file_is_read_once_a_look_and_anew_in_the_next(tmp_path: Path) -> None:
    reader = Reader(clock=iter(range(100)).__next__)
    path = tmp_path / "file"
    path.write_text("one")
    reader.begin()
    assert reader.read(str(path)) == reader.read(str(path)) == (0, b"one")
    path.write_text("two")
    assert reader.read(str(path)) == (0, b"one")
    reader.begin()
    assert reader.read(str(path)) == (1, b"two")
    reader.close()


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    reader = Reader()
    path = tmp_path / "long"
    path.write_bytes(os.urandom(300_000))
    reader.begin()
    assert reader.read(str(path))[1] == path.read_bytes()
    reader.close()
    whole = Reader()
    whole.begin()
    said = whole.read("/proc/vmstat")[1]  # comes in pieces
    assert [line.split()[0] for line in said.splitlines()] == [
        line.split()[0] for line in Path("/proc/vmstat").read_bytes().splitlines()
    ]
    whole.close()


def test_more_files_than_may_be_open_are_read_all_the_same(tmp_path: Path) -> None:
    reader = Reader(files=3)
    for n in range(10):
        (tmp_path / str(n)).write_text(str(n))
    for _ in range(2):
        reader.begin()
        for n in range(10):
            assert reader.read(str(tmp_path / str(n)))[1] == str(n).encode()
    assert len(reader._open) == 3
    reader.close()
    assert not reader._open


def test_files_that_nobody_reads_any_more_are_closed(tmp_path: Path) -> None:
    reader = Reader()
    (tmp_path / "x").write_text("x")
    reader.begin()
    reader.read(str(tmp_path / "x"))
    for _ in range(40):
        reader.begin()
    assert not reader._open
    reader.close()
