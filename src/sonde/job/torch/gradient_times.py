"""Time the backward pass by module, from the moments at which each parameter's gradient was ready.

This is coarser than watching autograd itself, but works with every torch: a module without
parameters counts as part of the one whose parameter is ready next. Where several gradients become
ready together (with FSDP a block at a time, or all), they share one time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROOM = 2**16  # times between two calls of take(): 1 MiB


def _do_nothing(_hook: object, _parameter: object) -> None:
    """Stand in for the hook where autograd is compiled, because the compiler gives up at a function
    in C. Compiled backward passes therefore have no gradient times."""


class GradientTimes:
    """Hooks on the parameters of models; the time between two calls belongs to the later one."""

    def __init__(self, torch: Any, room: int = _ROOM) -> None:
        self._torch = torch
        self._times = _core.TorchGradientTimes(room)
        self._times.show(_do_nothing)
        self._names: list[str] = []  # by key
        self._keys: dict[str, int] = {}
        self._watched: dict[int, tuple[weakref.ref[Any], Any]] = {}  # by id: parameter, handle

    @property
    def lost(self) -> int:
        """How many times were lost so far because there was no room."""
        return self._times.lost

    def watch(self, model: Any, name: str | None = None) -> int:
        """Hook the trainable parameters of a model that have no hook yet; return their number.

        Call this again from time to time: parameters are added later, frozen and freed, and FSDP
        replaces them."""
        self._forget_dead()
        before = len(self._watched)
        # Otherwise a torch function mode of the program would be called for each of them.
        with self._torch._C.DisableTorchFunction():
            for module, path in _walk(model, name or type(model).__name__):
                for parameter in vars(module).get("_parameters", {}).values():
                    if self._can_hook(parameter):
                        self._hook(parameter, path)
        return len(self._watched) - before

    def take(self, begins: Sequence[int] = ()) -> list[tuple[str, int, int]]:
        """Return module, begin and end of the work since the last call, ordered by time.

        `begins` are the times at which backward passes began, in order; the first gradient after
        one counts from there. The beginning of a gradient with nothing before it is unknown: its
        duration is 0."""
        found: list[tuple[str, int, int]] = []
        last_ns, last_key, at = 0, -1, 0
        for end_ns, key in self._times.take():
            is_new = not last_ns
            while at < len(begins) and begins[at] <= end_ns:
                if begins[at] >= last_ns:
                    last_ns, is_new = begins[at], True
                at += 1
            if key == last_key and not is_new:
                found[-1] = (found[-1][0], found[-1][1], end_ns)
            else:
                found.append((self._names[key], last_ns or end_ns, end_ns))
            last_ns, last_key = end_ns, key
        return found

    def stop(self) -> None:
        """Remove all hooks."""
        for _parameter, handle in self._watched.values():
            handle.remove()
        self._watched.clear()
        self._times.take()

    def _can_hook(self, parameter: Any) -> bool:
        if parameter is None or id(parameter) in self._watched:
            return False
        lazy = getattr(self._torch.nn.parameter, "UninitializedTensorMixin", ())
        return bool(parameter.requires_grad and parameter.is_leaf) and not isinstance(
            parameter, lazy
        )

    def _hook(self, parameter: Any, path: str) -> None:
        key = self._keys.setdefault(path, len(self._names))
        if key == len(self._names):
            self._names.append(path)
        handle = parameter.register_post_accumulate_grad_hook(self._times.make(key))
        self._watched[id(parameter)] = (weakref.ref(parameter), handle)

    def _forget_dead(self) -> None:
        # A new parameter may get the address of one that was freed.
        dead = [one for one, (parameter, _handle) in self._watched.items() if parameter() is None]
        for one in dead:
            del self._watched[one]


def _walk(model: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield every module once with its name, outer ones first, without running code of the program.

    A compiled module counts as a single one, because its gradients come all at once, in any
    order."""
    seen, left = set(), [(model, name, False)]
    while left:
        module, path, compiled = left.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield module, path
        own = vars(module)
        compiled = (
            compiled
            or own.get("_compiled_call_impl") is not None
            or "_orig_mod" in own.get("_modules", {})
        )
        for key, child in reversed(list(own.get("_modules", {}).items())):
            left.append((child, path if compiled else f"{path}.{key}", compiled))


class Part:
    """The time of the backward pass in a module, without and with its inner modules."""

    __slots__ = ("begin_ns", "own_ns", "total_ns")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns, self.own_ns, self.total_ns = begin_ns, 0, 0


def add_up(taken: Sequence[tuple[str, int, int]]) -> dict[str, Part]:
    """Return the time of each module, in the order in which they began."""
    found: dict[str, Part] = {}
    for name, begin_ns, end_ns in taken:
        words = name.split(".")
        for size in range(1, len(words) + 1):
            part = found.setdefault(".".join(words[:size]), Part(begin_ns))
            part.total_ns += end_ns - begin_ns
        part.own_ns += end_ns - begin_ns
    return found
