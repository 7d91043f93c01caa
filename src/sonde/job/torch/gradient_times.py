"""Backward by module from outside: when the gradient of each parameter was ready.

Coarser than watching autograd itself, and works with every torch: a module without parameters is
part of the one whose parameter is ready next. Where gradients come in one go (FSDP: a block at a
time, or all), so do the marks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROOM = 2**16  # marks between two takes: 1 MiB


def _do_nothing(_mark: object, _parameter: object) -> None:
    """A mark, as compiled autograd sees it: it would not know what to make of a function in C, and
    give up. So compiled backward passes have no marks."""


class GradientTimes:
    """GradientTimes on the parameters of models; the time between two marks belongs to the later one."""

    def __init__(self, torch: Any, room: int = _ROOM) -> None:
        self._torch = torch
        self._marks = _core.TorchGradientTimes(room)
        self._marks.show(_do_nothing)
        self._names: list[str] = []  # by key
        self._keys: dict[str, int] = {}
        self._watched: dict[int, tuple[weakref.ref[Any], Any]] = {}  # by id: parameter, handle

    @property
    def lost(self) -> int:
        """GradientTimes that found no room, so far."""
        return self._marks.lost

    def watch(self, model: Any, name: str | None = None) -> int:
        """Mark what has no mark yet of a model's parameters that learn; how many that were.

        May be called as often as one likes: parameters come later, are frozen and let go, and FSDP
        puts others in their place."""
        self._forget_dead()
        before = len(self._watched)
        # Or a mode of the program would be asked about each of them.
        with self._torch._C.DisableTorchFunction():
            for module, path in _walk(model, name or type(model).__name__):
                for parameter in vars(module).get("_parameters", {}).values():
                    if self._can_mark(parameter):
                        self._mark(parameter, path)
        return len(self._watched) - before

    def take(self, begins: Sequence[int] = ()) -> list[tuple[str, int, int]]:
        """Module, begin and end of what was done since the last time, in the order of time.

        `begins` are the times at which backward passes began, in order. The first mark after one
        has its time from there. Of a mark that nothing came before, the begin is not known: it is
        as long as nothing."""
        found: list[tuple[str, int, int]] = []
        last_ns, last_key, at = 0, -1, 0
        for end_ns, key in self._marks.take():
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
        """Take all marks off."""
        for _parameter, handle in self._watched.values():
            handle.remove()
        self._watched.clear()
        self._marks.take()

    def _can_mark(self, parameter: Any) -> bool:
        if parameter is None or id(parameter) in self._watched:
            return False
        lazy = getattr(self._torch.nn.parameter, "UninitializedTensorMixin", ())
        return bool(parameter.requires_grad and parameter.is_leaf) and not isinstance(
            parameter, lazy
        )

    def _mark(self, parameter: Any, path: str) -> None:
        key = self._keys.setdefault(path, len(self._names))
        if key == len(self._names):
            self._names.append(path)
        handle = parameter.register_post_accumulate_grad_hook(self._marks.make(key))
        self._watched[id(parameter)] = (weakref.ref(parameter), handle)

    def _forget_dead(self) -> None:
        # A new parameter may have the address of one that is gone.
        dead = [one for one, (parameter, _handle) in self._watched.items() if parameter() is None]
        for one in dead:
            del self._watched[one]


def _walk(model: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Every module once, with its name, outer ones first; past methods of the program's own.

    What is compiled is one: its gradients come all at once, in any order."""
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
    """What backward spent for a module: its own time, and with the modules inside."""

    __slots__ = ("begin_ns", "own_ns", "total_ns")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns, self.own_ns, self.total_ns = begin_ns, 0, 0


def add_up(taken: Sequence[tuple[str, int, int]]) -> dict[str, Part]:
    """By module, in the order of beginnings; a module has what those inside it have."""
    found: dict[str, Part] = {}
    for name, begin_ns, end_ns in taken:
        words = name.split(".")
        for size in range(1, len(words) + 1):
            part = found.setdefault(".".join(words[:size]), Part(begin_ns))
            part.total_ns += end_ns - begin_ns
        part.own_ns += end_ns - begin_ns
    return found
