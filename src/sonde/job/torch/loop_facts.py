"""Describe the parts of the training loop when each is first used, not at every step."""

from __future__ import annotations

import os
import sys
from weakref import WeakSet

from sonde import _core, environ
from sonde.job.torch.kineto_driver import is_cuda_up, is_program_profiling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_LOADERS = 256  # that are kept apart at a time
_MIN_INTERVAL_NS = 10**9  # between two rows of a program that alternates between loaders


class LoaderFacts:
    """Writes what is known about an iterator over a DataLoader when it is first used.

    All of it is read from the iterator's attributes: no code of the program runs, and nothing is
    kept alive."""

    def __init__(self, loader: _core.Writer, worker: _core.Writer) -> None:
        self._emit, self._emit_worker = loader, worker
        self._met: WeakSet[Any] = WeakSet()
        self._known: dict[int, tuple[int, object]] = {}  # by sampler: number, and last row's facts
        self._count = 0
        self._last = -1, 0  # loader and time of the last row

    def meet(self, iterator: Any) -> None:
        """Note that batches come from this iterator from now on."""
        facts, now_ns = _describe(vars(iterator)), _core.clock_ns()
        number, written = self._find(id(vars(iterator).get("_index_sampler")))
        last, last_ns = self._last
        if written != facts or (last != number and now_ns - last_ns > _MIN_INTERVAL_NS):
            self._known[id(vars(iterator).get("_index_sampler"))] = number, facts
            self._last = number, now_ns
            self._emit(now_ns, number, *facts)
        if iterator not in self._met:
            self._met.add(iterator)
            for at, worker in enumerate(vars(iterator).get("_workers", ())):
                self._emit_worker(now_ns, number, at, worker.pid)

    def _find(self, sampler: int) -> tuple[int, object]:
        # A loader keeps its sampler, and all its iterators share it. Ids are reused: a new loader
        # may get the number of one that is gone, but it has its own facts.
        if sampler not in self._known:
            if len(self._known) >= _MAX_LOADERS:
                self._known.clear()
            self._known[sampler] = self._count, None
            self._count += 1
        return self._known[sampler]


def _describe(held: dict[str, Any]) -> tuple[object, ...]:
    """Return the facts in the order of the row's columns, from an iterator's attributes."""
    kind, workers = type(held.get("_dataset")), held.get("_workers", ())
    sampler = getattr(held.get("_index_sampler"), "__dict__", {})
    size = sampler.get("batch_size") if held.get("_auto_collation") else None
    return (
        f"{kind.__module__}.{kind.__qualname__}",
        len(workers),
        size if type(size) is int else None,
        bool(held.get("_pin_memory")),
        held.get("_prefetch_factor") if workers else None,
        bool(held.get("_persistent_workers")),
        bool(held.get("_drop_last")),
        getattr(type(workers[0]), "_start_method", None) if workers else None,
    )


class OptimizerFacts:
    """Writes how an optimizer updates its parameters, when it begins to lead."""

    def __init__(self, emit: _core.Writer) -> None:
        self._emit = emit
        self._written: set[tuple[object, ...]] = set()

    def meet(self, optimizer: object) -> None:
        groups = vars(optimizer).get("param_groups")
        if type(groups) is not list or not groups:
            return
        first, device = groups[0], _find_device(groups[0]["params"])
        facts = (
            type(optimizer).__name__,
            _find_implementation(first, device),
            "fused" in first,
            sum(len(group["params"]) for group in groups),
            device,
        )
        if facts not in self._written and len(self._written) < _MAX_LOADERS:
            self._written.add(facts)
            self._emit(_core.clock_ns(), *facts)


def _find_implementation(group: dict[str, Any], device: str | None) -> str | None:
    """Return how torch updates the parameters of a group, by its options or torch's choice."""
    if group.get("fused"):
        return "fused"
    if "foreach" not in group:
        return None
    chosen = group["foreach"]
    if chosen is None:
        chosen = device is not None and device.startswith("cuda")
    return "foreach" if chosen else "single"


def _find_device(parameters: list[Any]) -> str | None:
    # Otherwise a torch function mode of the program would be called.
    with sys.modules["torch"]._C.DisableTorchFunction():
        return str(parameters[0].device) if parameters else None


class Threads:
    """Writes how many threads torch computes with, when that has changed."""

    def __init__(self, emit: _core.Writer) -> None:
        self._emit, self._torch = emit, sys.modules["torch"]
        self._written: tuple[int, ...] = ()

    def check(self) -> None:
        """Write the numbers if they have changed. Call this only after the first step: asking for
        the numbers fixes them."""
        found = (
            self._torch.get_num_threads(),
            self._torch.get_num_interop_threads(),
            len(os.sched_getaffinity(0)),
        )
        if found != self._written:
            self._written = found
            self._emit(_core.clock_ns(), *found)


class Precision:
    """Writes how exactly torch computes on a GPU, when that has changed."""

    def __init__(self, emit: _core.Writer) -> None:
        self._emit: _core.Writer = emit
        self._torch: Any = sys.modules["torch"]
        self._written: tuple[object, ...] = ()

    def check(self, autocast: str | None) -> None:
        """Write the facts if they have changed; the device is in use."""
        inner = self._torch._C
        found = (
            _ask_tf32(inner, "_get_cublas_allow_tf32", "matmul"),
            _ask_tf32(inner, "_get_cudnn_allow_tf32", "conv"),
            autocast,
            _find_capability(self._torch),
        )
        if found != self._written:
            self._written = found
            self._emit(_core.clock_ns(), *found)


class DebugFacts:
    """Writes which of torch's aids for finding faults are on, when that has changed."""

    def __init__(self, emit: _core.Writer) -> None:
        self._emit: _core.Writer = emit
        self._torch: Any = sys.modules["torch"]
        self._written: tuple[object, ...] = ()

    def check(self) -> None:
        """Write the facts if they have changed."""
        try:
            anomaly = bool(self._torch.is_anomaly_enabled())
        except (AttributeError, RuntimeError):  # a torch that we do not know
            anomaly = None
        # Most programs set it themselves, before they use CUDA.
        given = environ.read_variables(("CUDA_LAUNCH_BLOCKING",))
        blocking = "1" in given.values() and is_cuda_up()
        found = anomaly, is_program_profiling(), blocking
        if found != self._written:
            self._written = found
            self._emit(_core.clock_ns(), *found)


def _ask_tf32(inner: Any, old: str, operation: str) -> bool | None:
    """Return whether torch uses TF32; it refuses the old question if it was told in the new way."""
    try:
        return bool(getattr(inner, old)())
    except (AttributeError, RuntimeError):
        pass
    try:
        return str(inner._get_fp32_precision_getter("cuda", operation)) not in ("ieee", "none")
    except (AttributeError, RuntimeError):
        return None


def _find_capability(torch: Any) -> float | None:
    try:
        return float("{}.{}".format(*torch.cuda.get_device_capability()))
    except (AssertionError, AttributeError, RuntimeError):  # torch asserts that it has CUDA
        return None


def find_autocast() -> str | None:
    """Return the type that autocast computes with on a GPU now, or None."""
    torch: Any = sys.modules["torch"]
    try:
        if not torch._C.is_autocast_enabled("cuda"):
            return None
        return str(torch._C.get_autocast_dtype("cuda")).removeprefix("torch.")
    except (AttributeError, RuntimeError, TypeError):  # torch before 2.4 asks otherwise
        return None
