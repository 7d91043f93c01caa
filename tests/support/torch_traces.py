"""Traces as torch writes them on a machine with a GPU, made by hand: the numbers are known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from sonde.session import captures

BASE_NS = 1_790_000_000 * 10**9  # Kineto counts from a moment of its own
MAIN, ENGINE = 100, 101  # the thread that trains, and the one that autograd uses for the device
ID = "capture-by-hand"


def host(name: str, at_us: float, dur_us: float, cat: str = "cpu_op", tid: int = MAIN, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid, "ts": at_us,
            "dur": dur_us, "args": {key.replace("_", " "): value for key, value in args.items()}}  # fmt: skip


def device(name: str, at_us: float, dur_us: float, cat: str = "kernel", **args):
    args = {"device": 0, "stream": 7, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": at_us, "dur": dur_us,
            "args": {key.replace("_", " "): value for key, value in args.items()}}  # fmt: skip


# One step of 1000 us, and a second one that begins at 1000 and is recorded beyond its end at 2000.
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0, "args": {"name": "python"}},
    host("aten::linear", 100, 200, External_id=1, Sequence_number=10, Fwd_thread_id=0,
         Input_Dims=[[4, 8], [16, 8]], Input_type=["float", "float"]),
    host("aten::addmm", 120, 150, External_id=2, Sequence_number=10, Fwd_thread_id=0),
    host("cudaLaunchKernel", 140, 30, "cuda_runtime", External_id=2, correlation=77),
    device("gemm<128>", 400, 300.5, External_id=2, correlation=77, grid=[8, 1, 1],
           block=[128, 1, 1], registers_per_thread=64, shared_memory=1024),
    host("autograd::engine::evaluate_function: AddmmBackward0", 500, 100, tid=ENGINE,
         External_id=3, Sequence_number=10, Fwd_thread_id=1),
    host("aten::mm", 520, 50, tid=ENGINE, External_id=4),
    host("cudaMemcpyAsync", 1200, 20, "cuda_runtime", correlation=78),
    device("Memcpy HtoD", 1210, 90, "gpu_memcpy", correlation=78, bytes=4096, stream=13),
    host("Optimizer.step#SGD.step", 1900, 500, "user_annotation"),
    host("aten::add", 1950, 20, External_id=5),
    host("cudaLaunchKernel", 1955, 5, "cuda_runtime", External_id=5, correlation=79),
    device("late_but_ours", 2300, 10, External_id=5, correlation=79),
    host("aten::after", 2100, 20, External_id=6),
    host("cudaLaunchKernel", 2105, 5, "cuda_runtime", External_id=6, correlation=80),
    device("not_ours", 2400, 10, External_id=6, correlation=80),
    {"ph": "s", "id": 77, "pid": 100, "tid": 100, "ts": 140, "cat": "ac2g", "name": "ac2g"},
]  # fmt: skip


def dump(events: list[dict[str, object]]) -> bytes:
    """A whole file."""
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA"}]}
    rest = {"baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "x"}
    return json.dumps({**head, **rest}, indent=2).encode()


def store(folder: str, begin_ns: int, data: bytes | None = None) -> Path:
    """Put a window of two steps into a session; its time 0 is `begin_ns` of the session's clock."""
    Path(folder, captures.FOLDER).mkdir(exist_ok=True)
    path = Path(captures.name_file(folder, ID, captures.PACKED))
    path.write_bytes(gzip.compress(dump(EVENTS) if data is None else data))
    captures.write_request(folder, ID, captures.CaptureOptions(steps=2))
    about = captures.read_about(folder, ID).replace(
        state=captures.DONE, asked_ns=begin_ns, begin_ns=begin_ns, end_ns=begin_ns + 2_000_000,
        anchors=[(BASE_NS, begin_ns), (BASE_NS + 2_000_000, begin_ns + 2_000_000)],
        bounds=[(5, begin_ns), (6, begin_ns + 1_000_000), (7, begin_ns + 2_000_000)],
        thread=MAIN, device="cuda", file=path.name, bytes=path.stat().st_size,
        start_ns=1, stop_ns=2, save_ns=3,
    )  # fmt: skip
    captures.write_about(folder, about)
    return path
