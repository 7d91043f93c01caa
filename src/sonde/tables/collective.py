"""Collectives of torch.distributed."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u32, u64


class Collective:
    """One collective, send or receive of this process."""

    RING_BYTES = 4 * 2**20
    t_ns: i64 = column("when it was asked for", "ns")
    duration: f64 | None = column(
        "time of the host: until it was complete, waiting for the other ranks included; where a "
        "device does the work (NCCL), until it was handed over", "s",
    )  # fmt: skip
    device_duration: f64 | None = column("time of the device, where it does the work", "s")
    op: text = column("all_reduce, all_gather, … as the backend calls it")
    backend: text = column("gloo, nccl, …")
    group_name: text | None = column("process group")
    group_desc: text | None = column("what the group is for, as the program says")
    group_ranks: text | None = column("the ranks in it, with commas")
    group_size: u32 | None = column("how many ranks are in it")
    seq: u64 | None = column("which of its group's, from 1: the same on every rank of the group")
    bytes: u64 | None = column("what this rank gave", "B")
    output_bytes: u64 | None = column("what this rank got", "B")
    dtype: text | None = column("type of the numbers")
    state: text = column(
        "ended; running: took 5 s or the recording ended, another row follows if it ends; "
        "timeout: given up"
    )
    thread: i64 | None = column("thread that asked for it, as the kernel counts")
    step: i64 = column("which step: see python.torch_step")


ROWS = (Collective,)
