"""Collectives of torch.distributed."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32, u64


class Collective:
    """One collective, send or receive of this process."""

    RING_BYTES = 4 * 2**20
    t_ns: i64 = column("when it was requested", "ns")
    dur_ns: i64 | None = column(
        "host time until it was complete, including waiting for other ranks; if a device does "
        "the work (NCCL), host time until it was handed to the device", "ns",
    )  # fmt: skip
    device_dur_ns: i64 | None = column("device time, if a device does the work", "ns")
    op: text = column("name of the operation as the backend spells it: all_reduce, all_gather, …")
    backend: text = column("backend: gloo, nccl, …")
    group_name: text | None = column("name of the process group")
    group_desc: text | None = column("description of the group, as the program gave it")
    group_ranks: text | None = column("ranks in the group, separated by commas")
    group_size: u32 | None = column("number of ranks in the group")
    seq: u64 | None = column("number within its group, from 1; equal on every rank of the group")
    input_bytes: u64 | None = column("data that this rank contributed", "bytes")
    output_bytes: u64 | None = column("data that this rank received", "bytes")
    dtype: text | None = column("type of the elements")
    state: text = column(
        "ended; running: unfinished after 5 s, or when the recording ended (another row follows "
        "when it ends); timeout: given up"
    )
    thread: i64 | None = column("kernel id of the thread that requested it")
    step: i64 = column("number of the step: see python.torch_step")


ROWS = (Collective,)
