"""Calls of CUDA's runtime."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32, u64


class CudaCall:
    """Calls of CUDA that PyTorch made: each that took at least 20 µs; sums of shorter ones."""

    RING_BYTES = 2 * 2**20
    t_ns: i64 = column("start; of a sum, the start of the time that it is about", "ns")
    dur_ns: i64 | None = column(
        "time in the call or calls, in which the thread did nothing else; NULL for launches, which "
        "are only counted",
        "ns",
    )
    bytes: i64 | None = column("bytes that it copied, or got", "bytes")
    thread: i64 | None = column(
        "kernel thread id; NULL for sums over a second, as are the next three"
    )
    stream: u64 | None = column("address of the stream; 0 is the default one")
    step: i64 | None = column("number of the step: see python.torch_step")
    lineno: i64 | None = column("line of the program that called PyTorch; NULL in backward")
    calls: u32 = column(
        "number of calls: 1; 16 short waits, of which the last is described; or all other short "
        "calls of about a second"
    )
    call: text = column("name of the function: cudaStreamSynchronize")
    kind: text = column("synchronize, copy, allocate, free or launch")
    direction: text | None = column(
        "of a copy: host to device, device to host, device to device, host to host or not said"
    )
    device: text | None = column("device in use: cuda:0")
    module: text | None = column("module that it was called for, if that call is recorded")
    func: text | None = column("function of the program that called PyTorch")
    file: text | None = column("its source file")
    pinned: bool | None = column(
        "the host's memory was pinned; NULL if none of it was used, or less than 64 KiB"
    )


ROWS = (CudaCall,)
