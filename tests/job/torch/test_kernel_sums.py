"""Sums of what torch's profiler recorded, with stand-ins for its events."""

from __future__ import annotations

from sonde.job.torch.kernel_sums import NOWHERE, KernelWindow, fold

CPU, CUDA = "CPU", "CUDA"
NET = ("Net.fc", "forward", "/job/net.py", 7)
LOSS = (None, "train", "/job/train.py", 9)


class Event:
    """What torch hands out, as far as it is asked."""

    def __init__(self, name: str, begin: int, length: int, **more: object) -> None:
        self.facts = {
            "name": name, "start_ns": begin, "duration_ns": length, "device_type": CPU,
            "device_resource_id": 5, "device_index": 0, "sequence_nr": -1, "fwd_thread_id": 0,
            "correlation_id": 0, "linked_correlation_id": 0, "is_async": False,
            "is_user_annotation": False, "metadata_json": "", **more,
        }  # fmt: skip

    def __getattr__(self, name: str):
        if name == "facts" or name not in self.facts:
            raise AttributeError(name)
        return lambda: self.facts[name]


def op(number: int, name: str, begin: int, length: int, **more: object) -> Event:
    return Event(name, begin, length, correlation_id=number, **more)


def call(number: int, name: str, begin: int, length: int, linked: int = 0) -> Event:
    return Event(name, begin, length, correlation_id=number, linked_correlation_id=linked)


def work(number: int, name: str, begin: int, length: int, linked: int, **more: object) -> Event:
    return Event(name, begin, length, device_type=CUDA, correlation_id=number,
                 linked_correlation_id=linked, **more)  # fmt: skip


def add_up(events: list[Event], notes=((5, 1000, *NET),), begin: int = 1000, end: int = 9000):
    return KernelWindow(events, notes, CPU, begin, end).add_up()


def test_kernels_are_added_up_by_the_place_of_the_operator_that_launched_them() -> None:
    # Numbers of operators and of CUDA's calls are counted apart: 1 is both.
    sums = add_up([
        op(1, "aten::mm", 1000, 500),
        call(1, "cudaLaunchKernel", 1100, 10, linked=1),
        call(2, "cudaLaunchKernel", 1200, 10, linked=1),
        work(1, "gemm", 2000, 100, linked=1),
        work(2, "gemm", 2100, 50, linked=1),
    ])  # fmt: skip
    assert sums == {("cuda:0", "kernel", "gemm", False, NET): [2, 150, 150, None]}


def test_backward_has_the_place_of_its_forward_operator() -> None:
    events = [
        op(1, "aten::addmm", 1000, 500, sequence_nr=4),
        op(2, "AddmmBackward0", 3000, 500, sequence_nr=4, fwd_thread_id=1, device_resource_id=6),
        op(3, "aten::mm", 3100, 300, device_resource_id=6),
        call(7, "cudaLaunchKernel", 3150, 10, linked=3),
        work(7, "gemm", 4000, 100, linked=3),
    ]
    assert add_up(events, ((5, 1000, *NET), (6, 3100, *LOSS))) == {
        ("cuda:0", "kernel", "gemm", True, NET): [1, 100, 100, None]
    }


def test_own_times_and_idle_times_add_up_to_the_time_of_the_device() -> None:
    sums = add_up([
        op(1, "aten::a", 1000, 900),
        call(1, "cudaLaunchKernel", 1100, 10, linked=1),
        call(2, "cudaLaunchKernel", 1110, 10, linked=1),
        call(3, "cudaMemcpyAsync", 1120, 10, linked=1),
        call(4, "cudaStreamSynchronize", 2050, 250),
        call(5, "cudaLaunchKernel", 2400, 10, linked=1),
        call(6, "cudaLaunchKernel", 9500, 10, linked=1),  # in the next step
        work(1, "first", 2000, 100, linked=1),
        work(2, "second", 2050, 100, linked=1),  # on another stream: shares 50
        work(3, "Memcpy HtoD (Pinned -> Device)", 2140, 60, linked=1,
             metadata_json='"stream": 7, "bytes": 4096, "device": 0'),  # shares 10
        work(5, "third", 2450, 100, linked=1),
        work(6, "fourth", 9600, 100, linked=1),
    ])  # fmt: skip
    cuda = "cuda:0"
    assert sums == {
        (cuda, "kernel", "first", False, NET): [1, 100, 100, None],
        (cuda, "kernel", "second", False, NET): [1, 100, 50, None],
        (cuda, "copy", "Memcpy HtoD (Pinned -> Device)", False, NET): [1, 60, 50, 4096],
        (cuda, "kernel", "third", False, NET): [1, 100, 100, None],
        (cuda, "idle", "synchronisation", False, NET): [1, 200, 200, None],
        (cuda, "idle", "queued", False, NET): [1, 50, 50, None],
        (cuda, "idle", "nothing launched", False, NOWHERE): [1, 6950, 6950, None],
        (cuda, "idle", "queued", False, NOWHERE): [1, 100, 100, None],
    }
    assert sum(own for _, _, own, _ in sums.values()) == 9600 - 2000


def test_marks_and_what_was_launched_before_the_step_are_left_out() -> None:
    assert add_up([
        op(1, "aten::a", 500, 100),
        call(1, "cudaLaunchKernel", 550, 10, linked=1),
        work(1, "early", 2000, 100, linked=1),
        work(9, "unknown", 2000, 100, linked=9),
        work(2, "my range", 2000, 100, linked=1, is_user_annotation=True),
        work(3, "Stream Wait", 2000, 100, linked=1, activity_type="cuda_sync"),
        op(4, "aten::b", 1000, 100),
        call(4, "cudaLaunchKernel", 1010, 10, linked=4),
        work(4, "mine", 2100, 100, linked=4, activity_type="kernel"),
    ]) == {("cuda:0", "kernel", "mine", False, NET): [1, 100, 100, None]}  # fmt: skip


def test_an_operator_without_a_note_has_no_place() -> None:
    events = [op(1, "aten::a", 500_000, 100), call(1, "cuLaunchKernel", 500_010, 1, linked=1)]
    events += [work(1, "lonely", 600_000, 100, linked=1)]
    assert add_up(events, end=900_000) == {
        ("cuda:0", "kernel", "lonely", False, NOWHERE): [1, 100, 100, None]
    }


def test_without_a_device_operators_are_added_up_without_what_they_called() -> None:
    assert add_up([op(1, "aten::linear", 1000, 500), op(2, "aten::addmm", 1100, 300)]) == {
        ("cpu", "op", "aten::linear", False, NET): [1, 500, 200, None],
        ("cpu", "op", "aten::addmm", False, NET): [1, 300, 300, None],
    }


def test_sums_without_room_become_one() -> None:
    sums = {
        ("cuda:0", "kernel", name, False, NET): [1, total, total, size]
        for name, total, size in (("a", 3, None), ("b", 9, None), ("c", 2, 5))
    }
    assert fold(sums, 1) == {
        ("cuda:0", "kernel", "b", False, NET): [1, 9, 9, None],
        ("cuda:0", "kernel", "<other>", False, NOWHERE): [2, 5, 5, 5],
    }
