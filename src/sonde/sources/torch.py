"""PyTorch: modules, steps and memory, as soon as the program imports torch."""

from __future__ import annotations

import sys
from functools import partial

from sonde import _core
from sonde.errors import Unavailable
from sonde.host import Host
from sonde.record import column, f64, i64, text, u16, u32, u64
from sonde.sources._arrival import Arrival
from sonde.training.loops import Loaders, Optimizers
from sonde.training.naming import Naming
from sonde.training.seams import Place, find_device, find_engine, find_modules, observe_nodes
from sonde.training.steps import END, ROOT, Step, steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
    shadow: bool = column("modules were not recorded, to see what recording costs")
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


ROWS = (TorchTrace, TorchStep, TorchModule, TorchMemory)
_DEEP = 10_000


class Source:
    """Waits for torch, then watches its modules, autograd, optimizers and loaders."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._trace = host.writer(TorchTrace)
        self._emit_step = host.writer(TorchStep)
        self._optimizers, self._loaders = Optimizers(steps), Loaders()
        self._naming = Naming(host.writer(TorchModule))
        self._ended = host.guard(self._end_step)
        self._arrival = Arrival(_is_here, host.guard(self._arrive))
        self._tracer: _core.TorchTracer | None = None
        self._places: list[Place] = []
        self._backward = "off"  # how backward is seen
        self._device: str | None = None
        self._said: str | None = None

    def start(self) -> None:
        if _is_here():
            self._install()
        else:
            self._host.detail = "waits until the program imports torch"
            self._arrival.start()

    def stop(self) -> None:
        self._arrival.stop()
        steps.unsubscribe(self._ended)
        self._optimizers.stop()
        self._loaders.stop()
        for place in self._places:
            place.give_back()
        self._places = []
        _core.torch_ignore()
        if self._tracer is not None:
            self._finish(self._tracer)
        self._tracer = self._naming.tracer = None

    def _arrive(self) -> None:
        self._install()
        self._host.tell(self._said)

    def _install(self) -> None:
        torch: Any = sys.modules["torch"]
        session = self._host.session
        self._tracer = self._naming.tracer = _core.TorchTracer(
            self._trace, session.text, session.page, self._host.guard(self._naming.name),
            self._host.guard(partial(steps.end, ROOT)), torch.is_grad_enabled,
        )  # fmt: skip
        self._observe()
        self._tracer.start()
        self._begin_step()
        steps.subscribe(self._ended)
        self._optimizers.start(self._host.guard)
        self._loaders.start()
        self._places = [Place(owner, name, _core.TorchCall) for owner, name in find_modules()]
        engine = find_engine()
        if engine is not None:
            self._places.append(Place(*engine, _core.TorchEngine))

    def _observe(self) -> None:
        try:
            observe_nodes()
            self._backward = "exact"
        except Unavailable as error:
            self._backward = f"not by module: {error}"
        self._said = None if self._backward == "exact" else f"backward {self._backward}"
        self._host.detail = self._said

    # ---- a step --------------------------------------------------------------------------------

    def _begin_step(self) -> tuple[int, int, int, int, int, int, int, int]:
        assert self._tracer is not None
        roots = {ROOT: 1, "": 1}.get(steps.last, 2)
        return self._tracer.begin_step(
            steps.number, True, _DEEP, self._device is not None, 0, roots
        )

    def _end_step(self, step: Step) -> None:
        if self._tracer is None:
            return
        for place in self._places:
            place.heal()
        self._write(step, self._begin_step())
        if self._device is None:
            self._device = find_device()

    def _write(self, step: Step, sums: tuple[int, int, int, int, int, int, int, int]) -> None:
        first_ns, forward_ns, backward_ns, owned_ns, unowned_ns, _direct_ns, calls, lost = sums
        optimizer_ns, self._optimizers.spent_ns = self._optimizers.spent_ns, 0
        input_ns, self._loaders.spent_ns = self._loaders.spent_ns, 0
        begin_ns = step.begin_ns or min(self._loaders.first_ns or first_ns, first_ns)
        batch_ns, self._loaders.last_ns = self._loaders.last_ns, 0
        move_ns = first_ns - batch_ns if begin_ns <= batch_ns <= first_ns else 0
        whole_ns = step.end_ns - (begin_ns or step.end_ns)
        known_ns = input_ns + move_ns + forward_ns + backward_ns + optimizer_ns
        self._emit_step(
            step.number, begin_ns, whole_ns / 1e9, input_ns / 1e9, move_ns / 1e9, forward_ns / 1e9,
            backward_ns / 1e9, optimizer_ns / 1e9, max(0, whole_ns - known_ns) / 1e9, step.kind,
            False, calls, lost,
            owned_ns / (owned_ns + unowned_ns) if owned_ns + unowned_ns else None,
        )  # fmt: skip

    def _finish(self, tracer: _core.TorchTracer) -> None:
        """What there is of the last step is a step, too."""
        sums = tracer.begin_step(steps.number, False, 1, False, 0, 0)
        tracer.stop()
        if sums[0]:
            self._write(Step(steps.number, steps.begin_ns, _core.clock_ns(), END), sums)


def _is_here() -> bool:
    """Is all of torch imported that is watched?"""
    # Torch defines `compile` after it has imported nn, optim and utils.data.
    return "compile" in getattr(sys.modules.get("torch"), "__dict__", {})
