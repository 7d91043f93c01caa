"""PyTorch: modules, steps, memory, data loaders, optimizers and compilation."""

from __future__ import annotations

from sonde.session.schema import column, f64, i64, text, u16, u32, u64


class TorchTrace:
    """One stage of one call of a module."""

    RING_BYTES = 16 * 2**20
    step: i64 = column("number of the step: see python.torch_step")
    seq: u32 = column("position of this row within its step, by start")
    module: text = column("qualified name of the module: GPT.blocks.0.attn")
    stage: text = column("forward, backward, recompute (forward again, inside backward) or step")
    allocated: f64 | None = column(
        "memory in use at the end of the call: of a GPU, in some steps; where none is used, of the "
        "process, at most 5 ms before; NULL in backward",
        "MB",
    )
    max_allocated: f64 | None = column("most memory in use so far", "MB")
    cached: f64 | None = column("memory that torch holds, used or not", "MB")
    duration: f64 = column("host time, including inner modules", "s")
    t_ns: i64 = column("start", "ns")
    device_duration: f64 | None = column("device time, including inner modules", "s")
    self_duration: f64 = column("host time, excluding inner modules", "s")
    device: text | None = column("device that device_duration was measured on")
    thread: i64 = column("kernel thread id")
    depth: u16 = column("nesting depth; 0 is a module that the program itself calls")
    call: u32 = column("number of this call of the module within its step, from 0")
    raised: bool = column("the call ended with an exception")
    device_timed: bool = column(
        "device_duration was measured with events around this call; otherwise the device kept up "
        "with the host, and device_duration is the host time from one module to the next"
    )
    input_shapes: text | None = column(
        "shapes of the input tensors: [[4,8],[4]]; NULL unless torch.shapes is on"
    )


class TorchStep:
    """One step of training or inference, and where its time went."""

    RING_BYTES = 2 * 2**20
    step: i64 = column("number of the step, from 0")
    t_ns: i64 = column("start", "ns")
    dur_ns: i64 = column("duration", "ns")
    input_wait_ns: i64 = column("time waiting for the next batch of a DataLoader", "ns")
    host_to_device_ns: i64 = column(
        "time from the arrival of the batch to the first module: moving it to the device", "ns"
    )
    forward_ns: i64 = column("time in modules that the program calls", "ns")
    backward_ns: i64 = column("time in backward passes", "ns")
    optimizer_ns: i64 = column("time in optimizers", "ns")
    other_ns: i64 = column("time of everything else", "ns")
    ended_by: text = column(
        "what ended the step: optimizer, root (a model was called again), user (sonde.step) or end"
    )
    unrecorded: bool = column(
        "modules were not recorded: to measure what recording costs, or because of the budget or "
        "torch.every"
    )
    modules: u32 = column("module calls that were recorded")
    lost: u32 = column("module calls for which there was no room")
    owned_pct: f64 | None = column("share of backward that could be assigned to a module", "%")
    training: bool = column(
        "a backward pass ran or an optimizer made its step; otherwise it is a step of evaluation"
    )
    calls: u32 = column("how often the program called a model")
    backward_passes: u32 = column("how often it began a backward pass; 256 are 256 or more")
    cpu_ns: i64 | None = column(
        "CPU time of the thread that ended the step, since the last one; NULL if another thread "
        "ended that, and for the first one",
        "ns",
    )


class TorchModule:
    """A module, as it was at its first call."""

    RING_BYTES = 2 * 2**20
    t_ns: i64 = column("when", "ns")
    module: text = column("qualified name of the module")
    type: text = column("class of the module")
    parameters: u64 = column(
        "number of values of its parameters, including inner modules; frozen ones count, too"
    )
    own_parameters: u64 = column("the same, excluding inner modules")
    dtype: text | None = column("type of its parameters")
    device: text | None = column("device that its parameters are on")
    parent: text | None = column("qualified name of the module that contains it")


class TorchMemory:
    """Memory of one device at the end of a step."""

    RING_BYTES = 2 * 2**20
    t_ns: i64 = column("when", "ns")
    step: i64 = column("number of the step")
    device: text = column("cuda:0, …; cpu is the process itself")
    allocated_bytes: i64 = column("memory in use", "bytes")
    max_allocated_bytes: i64 = column("most memory in use so far", "bytes")
    cached_bytes: i64 = column(
        "memory that the allocator holds, used or not; for cpu, the size of the process", "bytes"
    )
    inactive_split_bytes: i64 | None = column(
        "free pieces of blocks that are partly in use: fragmentation", "bytes"
    )
    retries: u64 | None = column(
        "how often so far the allocator had to release memory to find room"
    )
    ooms: u64 | None = column("how often so far there was no memory left")
    blocks: u64 | None = column("number of blocks in use")


class TorchLoader:
    """A DataLoader, as it was at its first batch."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when its first batch came, or when it was found in use", "ns")
    loader: u32 = column("number of the loader in this process, from 0")
    dataset: text = column("class of the dataset")
    workers: u32 = column("worker processes; 0 if the program loads the data itself")
    batch_size: i64 | None = column(
        "examples in a batch; NULL if the program makes its own batches"
    )
    pin_memory: bool = column("batches are put into pinned memory; never true without a device")
    prefetch_factor: i64 | None = column(
        "batches that each worker loads ahead; NULL without workers"
    )
    persistent_workers: bool = column("workers stay alive from one epoch to the next")
    drop_last: bool = column("an incomplete last batch is left out")
    context: text | None = column("how workers are started: fork, spawn or forkserver")


class TorchWorker:
    """A process that loads data for a DataLoader."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when its first batch came, or when it was found in use", "ns")
    loader: u32 = column("number of its loader: see python.torch_loader")
    worker: u32 = column("number of the worker within its loader, from 0")
    process: i64 | None = column("pid of the worker: see system.process")


class TorchOptimizer:
    """An optimizer, as it was after its first step."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    optimizer: text = column("class of the optimizer, as in python.torch_trace")
    way: text | None = column(
        "how it updates parameters: fused (one kernel), foreach (many tensors at a time) or single "
        "(one tensor after the other); NULL if it has a way of its own"
    )
    can_fuse: bool = column("it has the option `fused`")
    tensors: u32 = column("number of parameter tensors that it updates")
    device: text | None = column("device of the first of these tensors")


class TorchThreads:
    """How many threads torch computes with: at the first step, and after each change."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    threads: u32 = column("threads that compute one operator")
    interop_threads: u32 = column("operators that run at the same time")
    allowed_cores: u32 = column("processors that the process may use")


class TorchPrecision:
    """How exactly torch computes on a GPU: after the first steps, and after each change."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    tf32_matmul: bool | None = column(
        "float32 matrices are multiplied with TF32 or less, on tensor cores"
    )
    tf32_convolution: bool | None = column("so are those of convolutions")
    autocast: text | None = column(
        "type that autocast computed with when the last new model was first called; NULL: none"
    )
    capability: f64 | None = column("compute capability of the device in use: 9.0")


class TorchDebug:
    """Which of torch's aids for finding faults are on: after the first step, and after changes."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    anomaly: bool | None = column(
        "autograd looks for the origin of values that are not numbers: set_detect_anomaly"
    )
    profiler: bool = column("the program's own torch.profiler records")
    launch_blocking: bool = column("each launch waits for the GPU: CUDA_LAUNCH_BLOCKING=1")


class TorchOom:
    """A device ran out of memory, whether or not the program went on."""

    RING_BYTES = 2**16
    t_ns: i64 = column("when", "ns")
    step: i64 = column("number of the step: see python.torch_step")
    device: text = column("device: cuda:0")
    needed_bytes: i64 | None = column("memory that was requested", "bytes")
    free_bytes: i64 | None = column("free memory of the device", "bytes")
    total_bytes: i64 | None = column("memory of the device that the program may use", "bytes")
    allocated_bytes: i64 | None = column("memory that torch had in use", "bytes")
    cached_bytes: i64 | None = column("memory that torch held, used or not", "bytes")
    largest_free_bytes: i64 | None = column("largest free block of what torch held", "bytes")
    thread: i64 = column("kernel thread id")
    number: u32 = column("number of this failure in the process, from 1")
    file: text | None = column(
        "file with the last steps, the stacks and the allocator's state; NULL after too many"
    )


class CompilePhase:
    """One phase of torch.compile, whether it was profiled or not."""

    RING_BYTES = 2**20
    t_ns: i64 = column("start", "ns")
    dur_ns: i64 = column("duration", "ns")
    phase: text = column("phase, as torch names it: compile_inner, backward, export")
    compile_id: text | None = column(
        "frame/compilation, as torch numbers them; NULL if the phase has none"
    )
    run: text | None = column("run that profiled it: see sonde.run")
    state: text = column(
        "profiled, or why not: recursive (inside a profiled phase), filtered (compile.frames), "
        "conflict (another run was in progress) or failed (its run could not begin)"
    )
    error: text | None = column("type of the exception that the phase raised")


ROWS = (
    TorchTrace,
    TorchStep,
    TorchModule,
    TorchMemory,
    TorchLoader,
    TorchWorker,
    TorchThreads,
    TorchPrecision,
    TorchDebug,
    TorchOptimizer,
    TorchOom,
    CompilePhase,
)
