"""Name modules by their place in the model they are part of."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from weakref import ref

from sonde import _core
from sonde.job.torch.loop_facts import find_autocast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_WALKS = 8  # through one model, to find parts that were added later
# Models of one class that get a number of their own. A loss that is created anew in every step
# would otherwise fill the memory with names.
_MAX_NUMBERS = 1000


class Named:
    """A module that has a name."""

    __slots__ = ("is_root", "key", "name", "ref")

    def __init__(self, key: int, name: str, ref: Callable[[], object], is_root: bool) -> None:
        self.key, self.name, self.ref, self.is_root = key, name, ref, is_root


class Naming:
    """Gives each module a name when it is first called, and keeps none of them alive.

    A model that the program itself calls is named after its class (`GPT`, the next one of that
    class `GPT#2`), and its parts by their path: `GPT.blocks.0.attn`."""

    def __init__(self, emit: Callable[..., object]) -> None:
        self._emit = emit
        self._known: dict[int, Named] = {}  # by address
        self._by_key: dict[int, Named] = {}
        self._models: dict[str, Named] = {}  # roots that are alive
        self._walks: dict[int, int] = {}
        self._roots: dict[str, int] = {}
        self._next, self._free = 1, list[int]()  # keys
        self._fresh: list[Named] = []  # no row is written for these yet
        self._described: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.tracer: _core.TorchTracer | None = None
        self.autocast: str | None = None  # when the last new model was first called

    def filter(self, pattern: str) -> None:
        """From now on record only modules whose name matches this; all modules if it is empty."""
        self._pattern = re.compile(pattern) if pattern else None
        # Copies, here and below, because other threads create and free modules.
        for named in list(self._known.values()):
            module = named.ref()
            if module is not None:
                self._pass_on(module, named)

    def name(self, module: Any, parent_key: int) -> None:
        """Name a module that is called for the first time, and all parts of its model."""
        if id(module) in self._known:
            return
        parent = self._by_key.get(parent_key)
        if parent is None:
            self.autocast = find_autocast()
            self._walk(module, self._name_root(module))
            return
        root_name = parent.name.partition(".")[0]
        model = self._models.get(root_name)
        root = None if model is None else model.ref()
        if root is not None and self._walks.get(id(root), 0) < _MAX_WALKS:
            self._walk(root, root_name)
        if id(module) not in self._known:  # created on the fly, or not registered with its parent
            self._add(module, f"{parent.name}.({type(module).__name__})", False)

    def list_roots(self) -> list[tuple[Any, str]]:
        """Return the models that the program itself calls, with their names."""
        roots = [(named.ref(), named.name) for named in list(self._models.values())]
        return [(model, name) for model, name in roots if model is not None]

    def _name_root(self, module: object) -> str:
        kind = type(module).__name__
        number = self._roots[kind] = self._roots.get(kind, 0) + 1
        if number > _MAX_NUMBERS:
            return f"{kind}#more"
        return kind if number == 1 else f"{kind}#{number}"

    def _walk(self, root: Any, root_name: str) -> None:
        self._walks[id(root)] = self._walks.get(id(root), 0) + 1
        for module, name in _list_parts(root, root_name):
            if id(module) not in self._known:
                self._add(module, name, module is root)

    def _add(self, module: Any, name: str, is_root: bool) -> None:
        address = id(module)
        if self._free:
            key = self._free.pop()
        else:
            key, self._next = self._next, self._next + 1
        named = Named(key, name, ref(module, lambda _: self._forget(address, key)), is_root)
        self._known[address] = self._by_key[key] = named
        if is_root:
            self._models[name] = named
        self._pass_on(module, named)
        self._fresh.append(named)

    def describe(self) -> None:
        """Write rows for new modules. Call this between steps: while a module is called, the
        program may be tracing its tensors, and our reads would become part of that trace."""
        fresh, self._fresh = self._fresh, []
        for named in fresh:
            module: Any = named.ref()
            if module is not None and named.name not in self._described:
                self._described.add(named.name)
                self._emit(_core.clock_ns(), named.name, type(module).__name__, *_measure(module),
                           named.name.rpartition(".")[0] or None)  # fmt: skip

    def _pass_on(self, module: object, named: Named) -> None:
        """Pass a module's name and key to the core."""
        ignored = self._pattern is not None and self._pattern.search(named.name) is None
        if self.tracer is not None:
            self.tracer.add_module(module, named.name, named.key, ignored)

    def _forget(self, address: int, key: int) -> None:
        # This may be called in the middle of anything, so nothing here may fail.
        named = self._by_key.pop(key, None)
        if named is not None and self._models.get(named.name) is named:
            del self._models[named.name]
        if self._known.get(address) is not None and self._known[address].key == key:
            del self._known[address]
            self._walks.pop(address, None)
            if self.tracer is not None:
                self.tracer.forget(address)
        self._free.append(key)


def _list_parts(root: Any, name: str) -> list[tuple[Any, str]]:
    """Return every module of a model once, with its name, as `named_modules` would: the program may
    have overridden that one, and another thread may be adding a part."""
    found, seen, left = [], set(), [(root, name)]
    while left:
        module, path = left.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found.append((module, path))
        parts = _list_own(module, "_modules")
        left += [(part, f"{path}.{key}") for key, part in reversed(parts)]
    return found


def _list_own(module: Any, kind: str) -> list[tuple[str, Any]]:
    """Return the entries of a module's dict `kind`. `vars` would make CPython build a dict of the
    values it keeps inside the object, and slow down the program's accesses from then on."""
    if hasattr(type(module), kind):  # for example a property that the program defines
        return list(vars(module).get(kind, {}).items())
    try:
        return list(object.__getattribute__(module, kind).items())
    except AttributeError:  # its __init__ has not got that far
        return []


def _measure(module: Any) -> tuple[int, int, str | None, str | None]:
    """Return how many numbers a module learns, with its parts and without, their type and their
    device."""
    # Otherwise a torch function mode of the program would be called for each of them, and an
    # uninitialised one (LazyLinear) would raise.
    with sys.modules["torch"]._C.DisableTorchFunction():
        own = _list_parameters([(module, "")])
        every = _list_parameters(_list_parts(module, ""))
        if not every:
            return 0, 0, None, None
        kind, device = str(every[0].dtype).removeprefix("torch."), str(every[0].device)
        return sum(one.numel() for one in every), sum(one.numel() for one in own), kind, device


def _list_parameters(parts: list[tuple[Any, str]]) -> list[Any]:
    """Return the parameters of these modules, each once."""
    found: dict[int, Any] = {}
    for part, _ in parts:
        found.update((id(one), one) for _, one in _list_own(part, "_parameters"))
    return [one for one in found.values() if one is not None]
