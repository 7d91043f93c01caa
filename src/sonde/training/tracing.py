"""A recording of torch: modules, autograd, optimizers, loaders, memory, within a budget."""

from __future__ import annotations

import sys
from _thread import get_native_id

from sonde import _core
from sonde.errors import Unavailable
from sonde.host import Host
from sonde.training.arrival import Arrival
from sonde.training.budget import Budget
from sonde.training.facts import LoaderFacts, OptimizerFacts, Threads
from sonde.training.ladder import WHOLE, Plan
from sonde.training.loops import Loaders, Optimizers
from sonde.training.marks import Marks, add_up
from sonde.training.memory import Memory
from sonde.training.naming import Naming
from sonde.training.seams import (
    Place,
    attend_nodes,
    find_compiled,
    find_device,
    find_engine,
    is_tracing,
    observe_nodes,
)
from sonde.training.steps import END, ROOT, Step, steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Sums: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, tuple[int, ...]]

FORWARD, BACKWARD = 1, 2  # where the device is timed
# What the recording itself cannot see: a busy device waits for each event, and torch tells of each
# node of autograd's (measured on an H200).
_EVENT_NS, _NODE_NS = 3000, 700
_HEAL_EVERY = 64  # steps; a change of nn.Module is seen at once
_MEMORY_EVERY, _MEMORY_DEPTH = 16, 2  # steps in which modules' memory is looked at, and how deep


class Tracing:
    """Stands in torch's places while it runs, and is told of every step."""

    def __init__(
        self,
        host: Host,
        trace: _core.Writer,
        step: _core.Writer,
        module: _core.Writer,
        memory: _core.Writer,
        overhead: _core.Writer,
        loader: _core.Writer,
        worker: _core.Writer,
        threads: _core.Writer,
        optimizer: _core.Writer,
    ) -> None:
        self._host = host
        self._emit, self._emit_step, self._emit_overhead = trace, step, overhead
        self._torch: Any = sys.modules["torch"]
        if not hasattr(self._torch, "nn") or "torch.optim.optimizer" not in sys.modules:
            raise Unavailable("this torch has no modules, or no optimizers")
        self._optimizers = Optimizers(steps, OptimizerFacts(optimizer).meet)
        self._loaders = Loaders(host.guard(LoaderFacts(loader, worker).meet))
        self._naming = Naming(module)
        self._memory = Memory(memory, self._torch)
        self._threads = Threads(threads, self._torch)
        session = host.session
        self._tracer = self._naming.tracer = _core.TorchTracer(
            trace, session.text, session.page, host.guard(self._naming.name),
            host.guard(_end_by_root), self._torch.is_grad_enabled, host.guard(self._read_memory),
        )  # fmt: skip
        self._ended = host.guard(self._end_step)
        self._compiled = Arrival(_is_compiling, host.guard(self._place_compiled))
        self._places: list[Place] = []
        self._observes = False
        self._marks: Marks | None = None  # where nothing exact is to be had
        self._device: str | None = None  # "": there is one that keeps its times to itself
        self._turn = FORWARD
        self._plan = Plan(True, 0, False)
        self._budget = Budget(0)

    def start(self) -> None:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        try:
            observe_nodes()
            self._observes = True
        except Unavailable as error:
            self._marks = Marks(self._torch)
            self._say(f"backward by marks on parameters, which is coarse: {error}")
        self.configure()
        self._tracer.start()
        self._begin_step()
        steps.subscribe(self._ended)
        self._optimizers.start(self._host.guard)
        self._loaders.start()
        self._places = [Place(self._torch.nn.Module, "__call__", _core.TorchCall)]
        self._tracer.watch(self._torch.nn.Module, self._host.guard(self._heal))
        engine = find_engine()
        if engine is not None:
            self._places.append(Place(*engine, _core.TorchEngine))
        if _is_compiling():
            self._place_compiled()
        else:
            self._compiled.start()

    def stop(self) -> None:
        self._compiled.stop()
        steps.unsubscribe(self._ended)
        self._optimizers.stop()
        self._loaders.stop()
        for place in self._places:
            place.give_back()
        self._finish()
        _core.torch_ignore()  # not sooner: other threads may be ending a step
        if self._marks is not None:
            self._marks.stop()
        self._memory.close()
        self._naming.tracer = None

    def configure(self) -> None:
        """Take over the budget, and what is wanted of it."""
        values = self._host.session.values
        limit, depth, every = (values[f"torch.{name}"] for name in ("budget_pct", "depth", "every"))
        self._naming.filter(str(values["torch.modules"]))
        self._budget.configure(
            float(limit), int(depth), int(every), has_detail=self._observes or bool(self._device)
        )

    def _say(self, what: str) -> None:
        said = self._host.detail
        self._host.tell(f"{said}; {what}" if said else what)

    # ---- torch's places ------------------------------------------------------------------------

    def _place_compiled(self) -> None:
        self._places.append(Place(find_compiled(), "__call__", _core.TorchCall))

    def _heal(self) -> None:
        for place in self._places:
            place.heal()

    def _look_for_device(self) -> None:
        try:
            self._device = find_device()
        except Unavailable as error:
            self._device = ""
            self._say(f"no times of the device: {error}")
        if self._device:
            self.configure()

    def _read_memory(self) -> tuple[float, float, float] | None:
        return self._memory.read(self._torch._C._cuda_getDevice() if self._device else None)

    # ---- a step --------------------------------------------------------------------------------

    def _begin_step(self) -> Sums:
        number = steps.number
        self._plan = plan = WHOLE if steps.whole else self._budget.plan(number)
        if self._observes:
            attend_nodes(plan.detail)
        device = 0
        if plan.detail and self._device:
            # In one direction at a time: each event makes a busy device wait.
            device = self._turn if self._budget.limit_pct else FORWARD | BACKWARD
            self._turn ^= FORWARD | BACKWARD
        memory = _MEMORY_DEPTH if number % _MEMORY_EVERY == _MEMORY_EVERY // 2 else 0
        roots = {ROOT: 1, "": 1}.get(steps.last, 2)
        return self._tracer.begin_step(number, plan.on, plan.depth + 1, device, memory, roots)

    def _end_step(self, step: Step) -> None:
        begin_ns = _core.clock_ns()
        if step.number % _HEAL_EVERY == 0:
            self._heal()
            self._threads.look()
        plan, sums = self._plan, self._begin_step()
        begun_ns = self._write(step, sums, plan)
        self._write_optimizers(step.number, plan.on, 2 * sums[6])
        if self._marks is not None:
            self._write_marks(self._marks, step.number, sums[10])
        self._naming.describe()
        self._memory.at_step(step.number)
        if self._device is None:
            self._look_for_device()
        direct_ns, events, nodes = sums[5], sums[8], sums[9]
        spent_ns = direct_ns + events * _EVENT_NS + nodes * _NODE_NS + _core.clock_ns() - begin_ns
        if self._budget.note(step.number, step.end_ns - begun_ns, plan, spent_ns):
            self._emit_overhead(*self._budget.describe(step.end_ns))

    def _write(self, step: Step, sums: Sums, plan: Plan) -> int:
        """Write the row of a step; when it began."""
        first_ns, forward_ns, backward_ns, owned_ns, unowned_ns, _, calls, lost, *_ = sums
        optimizer_ns, self._optimizers.spent_ns = self._optimizers.spent_ns, 0
        input_ns, self._loaders.spent_ns = self._loaders.spent_ns, 0
        begin_ns = step.begin_ns or min(self._loaders.first_ns or first_ns, first_ns) or step.end_ns
        batch_ns, self._loaders.last_ns = self._loaders.last_ns, 0
        move_ns = first_ns - batch_ns if begin_ns <= batch_ns <= first_ns else 0
        whole_ns = step.end_ns - begin_ns
        known_ns = input_ns + move_ns + forward_ns + backward_ns
        # LBFGS calls the model, and goes backward, inside its step.
        optimizer_ns = max(0, min(optimizer_ns, whole_ns - known_ns))
        known_ns += optimizer_ns
        self._emit_step(
            step.number, begin_ns, whole_ns / 1e9, input_ns / 1e9, move_ns / 1e9, forward_ns / 1e9,
            backward_ns / 1e9, optimizer_ns / 1e9, max(0, whole_ns - known_ns) / 1e9, step.kind,
            not plan.on, calls, lost,
            owned_ns / (owned_ns + unowned_ns) if owned_ns + unowned_ns else None,
        )  # fmt: skip
        return begin_ns

    def _write_optimizers(self, step: int, on: bool, seq: int) -> None:
        """What optimizers did, after the modules' rows, of which there are fewer than `seq`."""
        done, thread = self._optimizers.take(), get_native_id()
        for call, (name, begin_ns, end_ns) in enumerate(done if on else ()):
            took_s = (end_ns - begin_ns) / 1e9
            self._emit(
                step, seq + call, name, "step", None, None, None, took_s, begin_ns, None, took_s,
                None, thread, 0, call, False, None,
            )  # fmt: skip

    def _write_marks(self, marks: Marks, step: int, begins: tuple[int, ...]) -> None:
        """Backward of a step by marks; then the models seen so far are marked."""
        thread, found = get_native_id(), add_up(marks.take(begins))
        for seq, (name, part) in enumerate(found.items()):
            self._emit(
                step, seq, name, "backward", None, None, None, part.total_ns / 1e9, part.begin_ns,
                None, part.own_ns / 1e9, None, thread, name.count("."), 0, False, None,
            )  # fmt: skip
        for model, name in self._naming.list_roots():
            marks.watch(model, name)

    def _finish(self) -> None:
        """What there is of the last step is a step, too."""
        sums = self._tracer.begin_step(steps.number, False, 1, 0, 0, 0)
        self._tracer.stop()
        self._naming.describe()
        now_ns = _core.clock_ns()
        if sums[0]:
            self._write(Step(steps.number, steps.begin_ns, now_ns, END), sums, self._plan)
        self._emit_overhead(*self._budget.describe(now_ns))


def _is_compiling() -> bool:
    """Has the program asked for torch.compile?"""
    return find_compiled() is not None


def _end_by_root() -> None:
    """A model is called again. Not while torch writes down what is done to tensors: what happens at
    the end of a step would be in it."""
    if not is_tracing():
        steps.end(ROOT)
