"""Modules, steps and memory of PyTorch (with torch)."""

from __future__ import annotations

from sonde.host import Host
from sonde.record import column, f64, i64, text, u16, u32, u64
from sonde.training.overhead import Overhead
from sonde.training.tracing import Tracing


class TorchTrace:
    """One call of a module, one row for each stage."""

    RING_BYTES = 16 * 2**20
    step: i64 = column("which step: see python.torch_step")
    seq: u32 = column("the how manieth row of its step, in the order of beginnings")
    module: text = column("its name, as the model's parts are called: GPT.blocks.0.attn")
    stage: text = column("forward, backward, recompute (forward again, inside backward) or step")
    allocated: f64 | None = column("memory in use at the end, where it was looked at", "MB")
    max_allocated: f64 | None = column("most memory in use so far", "MB")
    cached: f64 | None = column("memory that torch keeps, used or not", "MB")
    duration: f64 = column("time of the host, with the modules inside", "s")
    t_ns: i64 = column("start", "ns")
    device_duration: f64 | None = column("time of the device, with the modules inside", "s")
    self_duration: f64 = column("time of the host, without the modules inside", "s")
    device: text | None = column("the device that device_duration is of")
    thread: i64 = column("thread id, as the kernel counts")
    depth: u16 = column("0 is a module that the program calls itself")
    call: u32 = column("which call of this module in its step, from 0")
    raised: bool = column("it ended with an exception")
    input_shapes: text | None = column("shapes of the tensors it was given, where asked for")


class TorchStep:
    """One step of training or inference, and where its time went."""

    RING_BYTES = 2 * 2**20
    step: i64 = column("its number, from 0")
    t_ns: i64 = column("start", "ns")
    duration: f64 = column("how long it took", "s")
    input_wait: f64 = column("waiting for the next batch of a DataLoader", "s")
    host_to_device: f64 = column("from the batch's arrival to the first module: moving it", "s")
    forward: f64 = column("in modules that the program calls", "s")
    backward: f64 = column("in backward passes", "s")
    optimizer: f64 = column("in optimizers", "s")
    other: f64 = column("the rest", "s")
    ended_by: text = column("optimizer, root (a model is called again), user, or end")
    shadow: bool = column("no modules: to see what they cost, or left out by budget or torch.every")
    modules: u32 = column("calls of modules that were recorded")
    lost: u32 = column("calls of modules that found no room")
    owned: f64 | None = column("share of backward's nodes that belong to a module")


class TorchModule:
    """A module, when it was first called."""

    RING_BYTES = 2 * 2**20
    t_ns: i64 = column("when", "ns")
    module: text = column("its name")
    type: text = column("its class")
    parameters: u64 = column("how many numbers it learns, with the modules inside")
    own_parameters: u64 = column("how many, without the modules inside")
    dtype: text | None = column("of its parameters")
    device: text | None = column("where its parameters are")
    parent: text | None = column("the module that it is a part of")


class TorchMemory:
    """Memory of one device at the end of a step."""

    RING_BYTES = 2 * 2**20
    t_ns: i64 = column("when", "ns")
    step: i64 = column("which step")
    device: text = column("cuda:0, or cpu: the process itself")
    allocated: f64 = column("in use", "MB")
    max_allocated: f64 = column("most in use so far", "MB")
    cached: f64 = column("kept by the allocator, used or not; of the process: its size", "MB")
    inactive_split: f64 | None = column("free pieces of blocks in use: fragmentation", "MB")
    retries: u64 | None = column("times that memory had to be given back to find room, so far")
    ooms: u64 | None = column("times that there was none, so far")


ROWS = (TorchTrace, TorchStep, TorchModule, TorchMemory, Overhead)


class Source:
    """What it does is in training/tracing.py."""

    def __init__(self, host: Host) -> None:
        self._tracing = Tracing(host, *(host.writer(row) for row in ROWS))

    def start(self) -> None:
        self._tracing.start()

    def stop(self) -> None:
        self._tracing.stop()

    def configure(self) -> None:
        """Take over the budget, and what is wanted of it."""
        self._tracing.configure()
