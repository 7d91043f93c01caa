"""PyTorch: modules, steps, memory, data loaders, optimizers and compilation."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u16, u32, u64


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
    device_timed: bool = column(
        "device_duration is of events around this call; else the device kept up with the host, "
        "and it is the host's time from one module to the next"
    )
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


class TorchLoader:
    """A DataLoader that batches come from, from now on."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when its first batch came, or it was found in use", "ns")
    loader: u32 = column("which loader of the process, from 0")
    dataset: text = column("class of what is loaded")
    workers: u32 = column("processes that load; 0: the program itself does")
    batch_size: i64 | None = column("examples in a batch; NULL: the program makes batches itself")
    pin_memory: bool = column("batches are put into pinned memory; never where there is no device")
    prefetch_factor: i64 | None = column("batches that each worker loads ahead; NULL: no workers")
    persistent_workers: bool = column("workers stay from one epoch to the next")
    drop_last: bool = column("the last batch is left out if it is not whole")
    context: text | None = column("how workers are started: fork, spawn or forkserver")


class TorchWorker:
    """A process that loads data for a DataLoader."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when its first batch came, or it was found in use", "ns")
    loader: u32 = column("for which loader: see python.torch_loader")
    worker: u32 = column("which of its workers, from 0")
    process: i64 | None = column("its pid: see system.process")


class TorchOptimizer:
    """An optimizer, when it has made its first step."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    optimizer: text = column("its class, as in python.torch_trace")
    way: text | None = column(
        "fused (one kernel), foreach (many tensors at a time) or single (one after the other); "
        "NULL: it has its own"
    )
    can_fuse: bool = column("it has the option fused")
    tensors: u32 = column("parameters it changes")
    device: text | None = column("where the first of them is")


class TorchThreads:
    """How many threads torch computes with: at the first step, and when it has changed."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    threads: u32 = column("threads of one operator")
    interop_threads: u32 = column("operators at a time")
    allowed_cores: u32 = column("processors that the process may use")


class TorchOom:
    """A device ran out of memory, whether the program went on or not."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    step: i64 = column("in which step: see python.torch_step")
    device: text = column("cuda:0")
    needed_bytes: i64 | None = column("how much was asked for", "B")
    free_bytes: i64 | None = column("how much of the device was free", "B")
    total_bytes: i64 | None = column("how much the program may have of the device", "B")
    allocated_bytes: i64 | None = column("how much was in use by torch", "B")
    cached_bytes: i64 | None = column("how much torch kept, used or not", "B")
    largest_free_bytes: i64 | None = column("the largest free piece of what torch kept", "B")
    thread: i64 = column("thread id, as the kernel counts")
    number: u32 = column("the how manieth of the process, from 1")
    file: text | None = column("steps, stacks and the allocator's state; NULL: there were too many")


class CompilePhase:
    """One phase of torch.compile, whether it was profiled or not."""

    RING_BYTES = 2**20
    t_ns: i64 = column("start", "ns")
    dur_ns: i64 = column("how long it lasted", "ns")
    phase: text = column("compile_inner, backward, export; as torch calls it")
    compile_id: text | None = column("frame/compilation, as torch numbers them; NULL: it has none")
    run: text | None = column("the run that profiled it; see sonde.run")
    state: text = column(
        "profiled; or why not: recursive (inside a profiled one), filtered (compile.frames), "
        "conflict (another run was under way), failed (its run could not begin)"
    )
    error: text | None = column("type of what it raised")


ROWS = (
    TorchTrace,
    TorchStep,
    TorchModule,
    TorchMemory,
    TorchLoader,
    TorchWorker,
    TorchThreads,
    TorchOptimizer,
    TorchOom,
    CompilePhase,
)
