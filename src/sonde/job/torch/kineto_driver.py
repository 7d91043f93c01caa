"""Torch's own profiler, driven from outside the program's code; for one window at a time."""

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

# What calls into torch may raise. Anything else is a bug of ours, and for the guard.
TROUBLE = (RuntimeError, AttributeError, TypeError, ValueError, AssertionError, OSError)

_STEPS = "ProfilerStep"  # who counts steps, as torch.profiler calls itself
_ENTRIES = ("_prepare_profiler", "_enable_profiler")
_YIELD_S = 1.0  # the program's own profiler waits so long at most for ours in another thread


class Kineto:
    """The profiler of one thread: begun, ended and saved. Never while the program has its own on.

    All but save() must be called in the thread that is profiled: what is recorded is bound to it,
    and to the threads that run its backward passes."""

    def __init__(self, on_displaced: Callable[[], object]) -> None:
        self._on_displaced = on_displaced  # called when the program starts a profiler of its own
        self._profile: Any = None
        self._result: Any = None
        self._event: Any = None
        self._entries: dict[str, tuple[Any, Any]] = {}
        self._gone = allocate_lock()  # held while ours is on
        self.thread = 0
        self.device: str | None = None

    @property
    def is_on(self) -> bool:
        return self._profile is not None

    def begin(self, *, shapes: bool, memory: bool, stacks: bool) -> None:
        """Start; Unavailable if that cannot be, RuntimeError if torch says so."""
        module = find_profiler()
        self.device = "cuda" if is_cuda_up() else None
        profile = module.profile(
            use_cpu=True, use_device=self.device, use_kineto=True, record_shapes=shapes,
            profile_memory=memory, with_stack=stacks, experimental_config=_make_config(stacks),
        )  # fmt: skip
        _quietly(profile._prepare_trace)
        try:
            profile._start_trace()
        except TROUBLE:
            module._run_on_profiler_stop()  # it said that it is on before it tried
            raise
        self._profile, self.thread = profile, get_ident()
        self._gone.acquire(False)
        self._watch(module)

    def mark_end(self) -> None:
        """What is on the device from here on is not wanted any more."""
        # Not synchronize(): the program must not wait. We stop later, when this event has passed.
        if self.device is not None:
            event = sys.modules["torch.cuda"].Event()
            event.record()
            self._event = event

    def is_settled(self) -> bool:
        """Has the device done all that came before mark_end()?"""
        return self._event is None or bool(self._event.query())

    def end(self) -> None:
        """Stop. What was recorded is kept until save() or drop()."""
        module = sys.modules["torch.autograd.profiler"]
        self._unwatch(module)
        self._profile = self._event = None
        try:
            self._result = sys.modules["torch.autograd"]._disable_profiler()
        finally:
            # As torch's own profiler does: compiled code looks at it.
            module._run_on_profiler_stop()
            if self._gone.locked():
                self._gone.release()

    def save(self, path: str) -> None:
        """Write the trace as JSON; OSError if it is not whole afterwards."""
        result, self._result = self._result, None
        result.save(path)
        # Kineto says nothing when the disk is full.
        if not _is_whole(path):
            raise OSError(errno.ENOSPC, "torch could not write all of it; is the disk full?")

    def drop(self) -> None:
        """Forget what was recorded."""
        self._result = None

    def forget(self) -> None:
        """In a forked child: what is on is the parent's."""
        module = sys.modules.get("torch.autograd.profiler")
        if self.is_on and module is not None:
            self._unwatch(module)
        self._profile = self._event = self._result = None

    # ---- the program's own profiler comes first ------------------------------------------------

    def _watch(self, module: Any) -> None:
        """Stand in front of torch's entries, so that the program's own profiler finds ours gone."""
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
                # In another thread only that one can stop it. Kineto knows one profiler at a time:
                # two of them would ruin the program's.
                if self.is_on and self._gone.acquire(timeout=_YIELD_S):
                    self._gone.release()
            return original(*args, **kwargs)

        return entry


# ---- torch, as far as it is imported -------------------------------------------------------------


def find_profiler() -> Any:
    """Torch's profiler, with all that is used of it, and nobody using it; else Unavailable."""
    module: Any = sys.modules.get("torch.autograd.profiler")
    if module is None or "compile" not in vars(sys.modules["torch"]):
        raise Unavailable("the program has not imported torch")
    needed = (*_ENTRIES, "profile", "_run_on_profiler_stop")
    missing = [name for name in needed if not hasattr(module, name)]
    if missing or not hasattr(sys.modules["torch.autograd"], "_disable_profiler"):
        version = getattr(sys.modules["torch"], "__version__", "")
        raise Unavailable(f"torch {version} has no profiler that we know: {', '.join(missing)}")
    if not getattr(module, "kineto_available", lambda: True)():
        raise Unavailable("this torch was built without its profiler (Kineto)")
    if getattr(module, "_is_profiler_enabled", False) or _find_foreign(module):
        raise Unavailable("the program's own torch.profiler is active")
    return module


def _find_foreign(module: Any) -> bool:
    """Is there a profiler of the program's that was prepared and has no result yet?"""
    # Warming up is a state that torch shows nowhere. Where one has counted steps all objects are
    # looked at, in C; that takes 0.2 s for a million of them, and most programs have none.
    counted = getattr(getattr(module, "KinetoStepTracker", None), "_step_dict", (_STEPS,))
    return _STEPS in counted and any(
        type(one) is module.profile
        and getattr(one, "entered", False)
        and getattr(one, "kineto_results", 0) is None
        for one in gc.get_referrers(module.profile)
    )


def is_cuda_up() -> bool:
    """Has the program begun to use CUDA? Never begins itself."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def is_in_backward() -> bool:
    """Is this thread inside a backward pass? What is begun there is undone at its end."""
    find = getattr(getattr(sys.modules.get("torch"), "_C", None), "_current_graph_task_id", None)
    return find is not None and find() != -1


def _is_whole(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            return file.read().rstrip().endswith(b"}")
    except FileNotFoundError:
        return False


def find_anchor() -> tuple[int, int]:
    """One moment on both clocks: wall and monotonic; Kineto tells wall clock time."""
    best = (2**62, 0, 0)
    for _ in range(5):
        before_ns = _core.clock_ns()
        wall_ns = time.time_ns()
        took_ns = _core.clock_ns() - before_ns
        best = min(best, (took_ns, wall_ns, before_ns + took_ns // 2))
    return best[1], best[2]


def _make_config(stacks: bool) -> Any:
    """Torch's events as a list for Python are not wanted: only the trace. New in 2.13."""
    known = getattr(sys.modules["torch"]._C, "_profiler", None)
    make = getattr(known, "_ExperimentalConfig", None)
    if make is None or stacks:
        return None
    try:
        return make(trace_only=True)
    except TypeError:
        return None


def _quietly(prepare: Callable[[], object]) -> None:
    """Call it so that Kineto, which is set up at the first call, prints nothing on stderr."""
    environ.call_with("KINETO_LOG_LEVEL", "6", prepare)
