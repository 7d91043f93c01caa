"""Kernels of a GPU, added up."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32


class KernelSum:
    """What a GPU did in one step, and why it had nothing to do: sums by kernel, module and line, of
    every n-th step, as kernel.every says. The own_ns of a device add up to the time from the first
    work of the step to the first of the next. Without a GPU, sums of operators."""

    RING_BYTES = 4 * 2**20
    t_ns: i64 = column("start of the step", "ns")
    step: i64 = column("number of the step: see python.torch_step")
    step_ns: i64 = column("how long the step took, under the profiler", "ns")
    count: u32 = column("how many of them; of idle time, how many gaps")
    total_ns: i64 = column("time that they ran, added up", "ns")
    own_ns: i64 = column(
        "time that nothing else accounts for: where works overlap, the one that began first has "
        "it, and kernels before copies, so a copy has the time in which no kernel ran; of an "
        "operator, the time without what it called",
        "ns",
    )
    bytes: i64 | None = column("bytes that copies moved; NULL if torch does not say", "bytes")
    lineno: i64 | None = column("line of the program that called PyTorch")
    kind: text = column("kernel, copy, set or idle; op without a GPU")
    kernel: text = column(
        "name of the kernel; of idle time, why: 'nothing launched' (the host was busy with other "
        "things), 'synchronisation' (the host had waited for the device, which then ran dry) or "
        "'queued' (launched, but not yet begun); <other>: what had no room"
    )
    device: text = column("cuda:0, …, or cpu")
    module: text | None = column("module that it was launched for: see python.torch_trace")
    func: text | None = column("function of the program that called PyTorch")
    file: text | None = column("its source file")
    backward: bool = column("it is of the backward pass: module and line are those of the forward")


ROWS = (KernelSum,)
