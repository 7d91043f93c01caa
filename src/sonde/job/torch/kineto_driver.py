"""Drive torch's own profiler from outside the program's code, for one capture at a time."""

from __future__ import annotations

import errno
import gc
import os
import sys
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable

from sonde import _core, environ
from sonde.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Errors that calls into torch may raise. Anything else is a bug of ours, which the guard catches.
TORCH_ERRORS = (RuntimeError, AttributeError, TypeError, ValueError, AssertionError, OSError)

# Called before a capture begins: whoever uses the profiler in between gives way to it.
guests: list[Callable[..., object]] = []

_ours: set[Kineto] = set()  # that are on

_STEPS = "ProfilerStep"  # the name under which torch.profiler counts steps
_ENTRIES = ("_prepare_profiler", "_enable_profiler")
_YIELD_S = 1.0  # how long the program's own profiler waits at most for ours in another thread


class Kineto:
    """Torch's profiler for one thread; never used while the program's own profiler is on.

    Everything but save() must be called in the thread to be profiled: the profiler records that
    thread and the threads that run its backward passes."""

    def __init__(self, on_displaced: Callable[[], object]) -> None:
        self._on_displaced = on_displaced  # called when the program starts a profiler of its own
        self._profile: Any = None
        self._result: Any = None
        self._event: Any = None
        self._entries: dict[str, tuple[Any, Any]] = {}
        self._gone = allocate_lock()  # held while our profiler is on
        self.thread = 0
        self.device: str | None = None

    @property
    def is_on(self) -> bool:
        return self._profile is not None

    def begin(self, *, shapes: bool, memory: bool, stacks: bool, events: bool = False) -> None:
        """Start the profiler; raise Unavailable if that is impossible, or what torch raises."""
        module = find_profiler()
        self.device = "cuda" if is_cuda_up() else None
        profile = module.profile(
            use_cpu=True, use_device=self.device, use_kineto=True, record_shapes=shapes,
            profile_memory=memory, with_stack=stacks,
            experimental_config=None if events else _make_config(stacks),
        )  # fmt: skip
        _call_quietly(profile._prepare_trace)
        try:
            profile._start_trace()
        except TORCH_ERRORS:
            module._run_on_profiler_stop()  # torch announces that it is on before it tries to start
            raise
        self._profile, self.thread = profile, get_ident()
        _ours.add(self)
        self._gone.acquire(False)
        self._watch(module)

    def mark_end(self) -> None:
        """Mark the point on the device after which nothing more is wanted."""
        # Not synchronize(), because the program must not wait. We stop later, after this event.
        if self.device is not None:
            event = sys.modules["torch.cuda"].Event()
            event.record()
            _core.fork_hold(event)  # a child that destroys it is aborted: CUDA does not work there
            self._event = event

    def is_settled(self) -> bool:
        """Return whether the device has done everything that came before mark_end()."""
        return self._event is None or bool(self._event.query())

    def end(self) -> None:
        """Stop the profiler; what was recorded is kept until save() or drop()."""
        module = sys.modules["torch.autograd.profiler"]
        self._unwatch(module)
        if self._event is not None:
            _core.fork_let_go(self._event)
        self._profile = self._event = None
        _ours.discard(self)  # after a fork it may be forgotten already
        try:
            self._result = sys.modules["torch.autograd"]._disable_profiler()
        finally:
            # Torch's own profiler does this, too: compiled code checks it.
            module._run_on_profiler_stop()
            if self._gone.locked():
                self._gone.release()

    def save(self, path: str) -> None:
        """Write the trace as JSON; raise OSError if it is incomplete."""
        result, self._result = self._result, None
        result.save(path)
        # Kineto reports no error when the disk is full.
        if not _is_complete(path):
            raise OSError(errno.ENOSPC, "torch could not write the whole trace; is the disk full?")

    def take(self) -> list[Any]:
        """Return the events that were recorded, if begin() was asked for them."""
        result, self._result = self._result, None
        return list(result.events())

    def drop(self) -> None:
        """Forget what was recorded."""
        self._result = None

    def forget(self) -> None:
        """Forget everything in a forked child: a profiler that is on is the parent's."""
        module = sys.modules.get("torch.autograd.profiler")
        if self.is_on and module is not None:
            self._unwatch(module)
        self._profile = self._event = self._result = None
        _ours.clear()

    # ---- the program's own profiler comes first ------------------------------------------------

    def _watch(self, module: Any) -> None:
        """Wrap torch's entry points, so that ours is off when the program's own profiler starts."""
        for name in _ENTRIES:
            original = getattr(module, name)
            ours = self._make_entry(original)
            self._entries[name] = original, ours
            setattr(module, name, ours)

    def _unwatch(self, module: Any) -> None:
        for name, (original, ours) in self._entries.items():
            if getattr(module, name, None) is ours:
                setattr(module, name, original)
        self._entries = {}

    def _make_entry(self, original: Callable[..., object]) -> Callable[..., object]:
        def entry(*args: object, **kwargs: object) -> object:
            if self.is_on:
                self._on_displaced()
                # A profiler in another thread can only be stopped by that thread. Kineto supports
                # one profiler at a time: a second one would ruin the program's.
                if self.is_on and self._gone.acquire(timeout=_YIELD_S):
                    self._gone.release()
            return original(*args, **kwargs)

        return entry


# ---- torch, as far as it is imported -------------------------------------------------------------


def find_profiler() -> Any:
    """Return torch's profiler module; raise Unavailable if it is in use or not as we know it."""
    module: Any = sys.modules.get("torch.autograd.profiler")
    if module is None or "compile" not in vars(sys.modules["torch"]):
        raise Unavailable("the program has not imported torch")
    needed = (*_ENTRIES, "profile", "_run_on_profiler_stop")
    missing = [name for name in needed if not hasattr(module, name)]
    if missing or not hasattr(sys.modules["torch.autograd"], "_disable_profiler"):
        version = getattr(sys.modules["torch"], "__version__", "")
        absent = ", ".join(missing) or "_disable_profiler"
        raise Unavailable(f"sonde does not support the profiler of torch {version}: no {absent}")
    if not getattr(module, "kineto_available", lambda: True)():
        raise Unavailable("this torch was built without its profiler (Kineto)")
    if getattr(module, "_is_profiler_enabled", False) or _find_foreign(module):
        raise Unavailable("the program's own torch.profiler is active")
    return module


def is_program_profiling() -> bool:
    """Return whether torch's profiler is on, and not for us."""
    module = sys.modules.get("torch.autograd.profiler")
    return bool(getattr(module, "_is_profiler_enabled", False)) and not _ours


def _find_foreign(module: Any) -> bool:
    """Return whether the program has prepared a profiler that has no result yet."""
    # Torch does not show that a profiler is warming up. If one has counted steps, all objects are
    # searched, in C; that takes 0.2 s for a million objects, and most programs never get here.
    counted = getattr(getattr(module, "KinetoStepTracker", None), "_step_dict", (_STEPS,))
    return _STEPS in counted and any(
        type(one) is module.profile
        and getattr(one, "entered", False)
        and getattr(one, "kineto_results", 0) is None
        for one in gc.get_referrers(module.profile)
    )


def is_cuda_up() -> bool:
    """Return whether the program has initialised CUDA, without initialising it."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def is_in_backward() -> bool:
    """Return whether this thread is in a backward pass: its end would undo what begins inside."""
    find = getattr(getattr(sys.modules.get("torch"), "_C", None), "_current_graph_task_id", None)
    return find is not None and find() != -1


def _is_complete(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            return file.read().rstrip().endswith(b"}")
    except FileNotFoundError:
        return False


def find_anchor() -> tuple[int, int]:
    """Return one moment on both clocks, wall and monotonic: Kineto uses the wall clock."""
    best = (2**62, 0, 0)
    for _ in range(5):
        before_ns = _core.clock_ns()
        wall_ns = time.time_ns()
        took_ns = _core.clock_ns() - before_ns
        best = min(best, (took_ns, wall_ns, before_ns + took_ns // 2))
    return best[1], best[2]


def _make_config(stacks: bool) -> Any:
    """Return a config that skips the list of events for Python, which torch can since 2.13."""
    known = getattr(sys.modules["torch"]._C, "_profiler", None)
    make = getattr(known, "_ExperimentalConfig", None)
    if make is None or stacks:
        return None
    try:
        return make(trace_only=True)
    except TypeError:
        return None


def _call_quietly(prepare: Callable[[], object]) -> None:
    """Call `prepare` so that Kineto, which the first call sets up, prints nothing on stderr."""
    environ.call_with("KINETO_LOG_LEVEL", "6", prepare)
