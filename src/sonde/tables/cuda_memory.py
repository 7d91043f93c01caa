"""Who holds memory of a GPU."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32


class CudaMemory:
    """What a line of the program holds of a GPU's memory, as PyTorch's allocator says; all lines
    at the end of a step: once in a minute at most, or thrice in a look while it grows."""

    RING_BYTES = 2**20
    t_ns: i64 = column("when; the same for all lines of one moment", "ns")
    step: i64 = column("number of the step: see python.torch_step")
    device: text = column("cuda:0, …")
    func: text | None = column(
        "function of the program that allocated, or called who did; NULL if that is not known: "
        "allocated in backward, or before the source was switched on"
    )
    file: text | None = column("source file of it")
    lineno: i64 | None = column("line of it")
    call: text | None = column("innermost function, if it is PyTorch's")
    alive_bytes: i64 = column("in use", "bytes")
    alive_blocks: u32 = column("number of such blocks")


ROWS = (CudaMemory,)
