"""Sampled allocations of Python and its libraries."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32, u64


class HeapHistory:
    """What a place of python.heap held at one moment; written every 10 s for those that changed."""

    RING_BYTES = 4 * 2**20
    t_ns: i64 = column("when", "ns")
    stack: i64 = column("id of the stack that allocated, see python.frame")
    type: text | None = column("type of the objects; NULL if it is not known, as for buffers")
    alive_bytes: i64 = column("allocated and not freed yet", "bytes")
    alive_blocks: i64 = column("number of such blocks")
    allocated_bytes: i64 = column("allocated since the source was first switched on", "bytes")
    allocated_blocks: i64 = column("number of such blocks")


class HeapSampling:
    """How sampling of the heap went: totals since the source was switched on, every 10 s."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    every_bytes: i64 = column("bytes between two samples, on average, at that moment", "bytes")
    samples: u64 = column("blocks that were sampled")
    frees: u64 = column("sampled blocks that were freed or moved")
    blocks_lost: u64 = column("samples that found no room and do not count: raise heap.every")
    stacks_lost: u64 = column("samples for whose stack there was no room; they are at <no room>")
    cut: u64 = column("stacks deeper than 512 frames, whose outermost frames are left out")
    own_ns: i64 = column("time that taking the samples took", "ns")
    blocks: u32 = column("sampled blocks that are alive")
    stacks: u32 = column("distinct stacks, including the parts they share")
    native: u64 = column("samples with the native functions that allocated; see stack.native")
    native_lost: u64 = column("samples for which stack.native is on, without such functions")


ROWS = (HeapHistory, HeapSampling)
