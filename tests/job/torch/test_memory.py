"""Memory of the process and of devices, at step ends."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import wait_for
from sonde.job.torch.memory import MemoryWriter

MB = 10**6


def make_stats(allocated: int, peak: int, reserved: int, split: int = 0) -> dict[str, object]:
    """As torch's allocator gives them."""
    return {
        "allocated_bytes": {"all": {"current": allocated, "peak": peak}},
        "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
        "inactive_split_bytes": {"all": {"current": split, "peak": split}},
        "num_alloc_retries": 3,
        "num_ooms": 1,
        "allocation": {"all": {"current": 12}},
    }


class FakeTorch:
    """The part of torch that is asked."""

    def __init__(self, *devices: dict[str, object]) -> None:
        self.devices, self.asked, self.initialized = list(devices), [], True
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialized, device_count=lambda: len(self.devices)
        )
        self._C = SimpleNamespace(_cuda_memoryStats=self._read)

    def _read(self, device: int) -> dict[str, object]:
        self.asked.append(device)
        return self.devices[device]


@pytest.fixture
def rows() -> list[tuple[object, ...]]:
    return []


@pytest.fixture
def make(rows):
    made = []

    def make(torch: object, rest: int = 0, **options: str) -> MemoryWriter:
        made.append(MemoryWriter(lambda *row: rows.append(row), torch, rest=rest, **options))
        return made[-1]

    yield make
    for memory in made:
        memory.close()


def read_status(name: str) -> int:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if name in one)
    return int(line.split()[1]) * 1024


def test_the_process_is_as_large_as_the_kernel_says(make, rows) -> None:
    memory = make(FakeTorch())
    memory.at_step(7)
    ((_t_ns, step, device, resident, most, size, *rest),) = rows
    assert (step, device, rest) == (7, "cpu", [None] * 4)
    assert resident == most == pytest.approx(read_status("VmRSS:"), rel=0.2)
    assert size == pytest.approx(read_status("VmSize:"), rel=0.05)


def test_the_most_only_grows(make, rows) -> None:
    memory = make(FakeTorch())
    block = bytearray(64 * 10**6)
    memory.at_step(0)
    del block
    gc.collect()
    memory.at_step(1)
    (first, second) = rows
    assert second[3] < first[3] - 50 * MB
    assert second[4] == first[4] == round(memory.read(None)[1] * MB)


def test_a_device_in_use_has_a_row_and_the_others_are_left_alone(make, rows) -> None:
    torch = FakeTorch(make_stats(0, 0, 0), make_stats(5 * MB, 8 * MB, 20 * MB, 2 * MB))
    memory = make(torch)
    for step in range(10):
        memory.at_step(step)
    devices = [row for row in rows if row[2] != "cpu"]
    assert [row[1:] for row in devices[:1]] == [
        (0, "cuda:1", 5 * MB, 8 * MB, 20 * MB, 2 * MB, 3, 1, 12)
    ]
    assert len(devices) == 10
    assert torch.asked.count(0) == 1


def test_a_device_that_is_used_later_is_found(make, rows) -> None:
    torch = FakeTorch(make_stats(1, 1, 1), make_stats(0, 0, 0))
    memory = make(torch)
    memory.at_step(0)
    torch.devices[1] = make_stats(1, 1, 1)
    for step in range(1, 300):
        memory.at_step(step)
    assert {row[2] for row in rows} == {"cpu", "cuda:0", "cuda:1"}


def test_a_peak_that_the_program_resets_is_kept(make, rows) -> None:
    torch = FakeTorch(make_stats(MB, 9 * MB, 9 * MB))
    memory = make(torch)
    memory.at_step(0)
    torch.devices[0] = make_stats(MB, 2 * MB, 9 * MB)
    memory.at_step(1)
    assert [row[4] for row in rows if row[2] == "cuda:0"] == [9 * MB, 9 * MB]
    assert memory.read(0) == (1.0, 9.0, 9.0)


def test_a_program_that_does_not_use_cuda_is_not_asked(make, rows) -> None:
    torch = FakeTorch(make_stats(1, 1, 1))
    torch.initialized = False
    memory = make(torch)
    memory.at_step(0)
    assert [row[2] for row in rows] == ["cpu"] and torch.asked == []
    assert memory.read(0) is None


def refuse(_device: int) -> None:
    raise RuntimeError("this allocator has no statistics\nsecond line")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (None, "this torch lacks torch._C._cuda_memoryStats"),
        (refuse, "this allocator has no statistics"),
    ],
)
def test_a_torch_that_cannot_tell_is_named_and_asked_once(make, rows, entry, why: str) -> None:
    torch = FakeTorch(make_stats(1, 1, 1))
    torch._C = SimpleNamespace(**({} if entry is None else {"_cuda_memoryStats": entry}))
    memory = make(torch)
    for step in range(3):
        memory.at_step(step)
    assert [row[2] for row in rows] == ["cpu"] * 3
    assert memory.missing == f"no memory of devices: {why}"


def test_a_kernel_that_does_not_tell_is_a_gap(make, rows, tmp_path) -> None:
    (tmp_path / "odd").write_text("1 2 three")
    for path in (tmp_path / "none", tmp_path / "odd"):
        memory = make(FakeTorch(), statm=str(path))
        memory.at_step(0)
        assert rows == [] and memory.read(None) is None


def test_a_program_that_closes_all_files_loses_none_of_its_own(make, rows, tmp_path) -> None:
    memory = make(FakeTorch())
    memory.at_step(0)
    fd = memory._statm._fd
    os.close(fd)
    memory.at_step(1)  # nobody has the number
    theirs = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.dup2(theirs, memory._statm._fd)  # they have it now
    taken = memory._statm._fd
    os.write(taken, b"mine")
    memory.at_step(2)
    memory.close()
    assert [row[1] for row in rows] == [0, 1, 2]
    assert os.pread(taken, 10, 0) == b"mine"
    os.close(taken)
    os.close(theirs)


def test_steps_that_are_shorter_than_it_may_cost_are_left_out(make, rows) -> None:
    memory = make(FakeTorch(), rest=10**9)
    assert memory.at_step(0) > 0
    assert [memory.at_step(step) for step in range(1, 100)] == [0] * 99
    assert len(rows) == 1
    wait_for(lambda: memory.at_step(100), 10)  # a tenth of a second, and no longer
    assert [row[1] for row in rows] == [0, 100]


def test_it_says_what_it_took(make) -> None:
    assert make(FakeTorch()).at_step(0) > 0


def test_real_torch_agrees(make, rows) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        make(torch).at_step(0)
        assert [row[2] for row in rows] == ["cpu"]
        assert not torch.cuda.is_initialized()
        return
    block = torch.zeros(10**6, device="cuda")
    peak = torch.cuda.max_memory_allocated()
    memory = make(torch)
    memory.at_step(0)
    (row,) = [row for row in rows if row[2] == "cuda:0"]
    assert row[3] == torch.cuda.memory_allocated() >= block.nbytes
    assert row[4] == torch.cuda.max_memory_allocated() == peak
    assert row[5] == torch.cuda.memory_reserved()
