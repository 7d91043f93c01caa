"""What modules are called: by their place in the model that they are a part of."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from weakref import ref

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WALKS = 8  # of one model, to find parts that it did not have before
_MOST = 1000  # models of one class that have a number; a loss that is made anew in every step has
# a name of its own no more then, or names would fill the memory


class Named:
    """A module that has a name."""

    __slots__ = ("is_root", "key", "name", "ref")

    def __init__(self, key: int, name: str, ref: Callable[[], object], is_root: bool) -> None:
        self.key, self.name, self.ref, self.is_root = key, name, ref, is_root


class Naming:
    """Gives each module a name when it is first called; holds none of them alive.

    A model that the program calls itself is called like its class (`GPT`, the next one of that
    class `GPT#2`), its parts `GPT.blocks.0.attn`."""

    def __init__(self, emit: Callable[..., object]) -> None:
        self._emit = emit
        self._known: dict[int, Named] = {}  # by address
        self._by_key: dict[int, Named] = {}
        self._models: dict[str, Named] = {}  # roots that are alive
        self._walks: dict[int, int] = {}
        self._roots: dict[str, int] = {}
        self._next, self._free = 1, list[int]()  # keys
        self._fresh: list[Named] = []  # not written down yet
        self._described: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.tracer: _core.TorchTracer | None = None

    def filter(self, pattern: str) -> None:
        """From now on record only modules whose name has this in it; empty: all."""
        self._pattern = re.compile(pattern) if pattern else None
        # Copies, here and below: in other threads modules are made and let go.
        for named in list(self._known.values()):
            module = named.ref()
            if module is not None:
                self._tell(module, named)

    def name(self, module: Any, parent_key: int) -> None:
        """Name a module that is called for the first time, and all parts of its model."""
        if id(module) in self._known:
            return
        parent = self._by_key.get(parent_key)
        if parent is None:
            self._walk(module, self._name_root(module))
            return
        root_name = parent.name.partition(".")[0]
        model = self._models.get(root_name)
        root = None if model is None else model.ref()
        if root is not None and self._walks.get(id(root), 0) < _WALKS:
            self._walk(root, root_name)
        if id(module) not in self._known:  # made on the fly, or kept where torch does not look
            self._add(module, f"{parent.name}.({type(module).__name__})", False)

    def list_roots(self) -> list[tuple[Any, str]]:
        """Models that the program calls itself, and their names."""
        roots = [(named.ref(), named.name) for named in list(self._models.values())]
        return [(model, name) for model, name in roots if model is not None]

    def _name_root(self, module: object) -> str:
        kind = type(module).__name__
        number = self._roots[kind] = self._roots.get(kind, 0) + 1
        if number > _MOST:
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
        self._tell(module, named)
        self._fresh.append(named)

    def describe(self) -> None:
        """Write down what is new, between steps: the program may be tracing its tensors while a
        module is called, and would find our looks at them in its trace."""
        fresh, self._fresh = self._fresh, []
        for named in fresh:
            module: Any = named.ref()
            if module is not None and named.name not in self._described:
                self._described.add(named.name)
                self._emit(_core.clock_ns(), named.name, type(module).__name__, *_measure(module),
                           named.name.rpartition(".")[0] or None)  # fmt: skip

    def _tell(self, module: object, named: Named) -> None:
        ignored = self._pattern is not None and self._pattern.search(named.name) is None
        if self.tracer is not None:
            self.tracer.add_module(module, named.name, named.key, ignored)

    def _forget(self, address: int, key: int) -> None:
        # Called in the middle of anything: only what cannot fail.
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
    """Every module of a model once, with its name, as `named_modules` has them: that one may be the
    program's own, and another thread may be adding a part."""
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
    """What a module has of a kind. Not by `vars`: CPython would make a dict of what it keeps in the
    object, and from then on each access of the program's to an attribute would take longer."""
    if hasattr(type(module), kind):  # a property of the program's, say
        return list(vars(module).get(kind, {}).items())
    try:
        return list(object.__getattribute__(module, kind).items())
    except AttributeError:  # its __init__ has not come that far
        return []


def _measure(module: Any) -> tuple[int, int, str | None, str | None]:
    """Numbers that a module learns, with its parts and without; their type, and where they are."""
    # Or a mode of the program would be asked about each of them; and one that is not there yet
    # (LazyLinear) would refuse to say that it has none.
    with sys.modules["torch"]._C.DisableTorchFunction():
        own = _list_parameters([(module, "")])
        every = _list_parameters(_list_parts(module, ""))
        if not every:
            return 0, 0, None, None
        kind, device = str(every[0].dtype).removeprefix("torch."), str(every[0].device)
        return sum(one.numel() for one in every), sum(one.numel() for one in own), kind, device


def _list_parameters(parts: list[tuple[Any, str]]) -> list[Any]:
    """Those of some modules, each once."""
    found: dict[int, Any] = {}
    for part, _ in parts:
        found.update((id(one), one) for _, one in _list_own(part, "_parameters"))
    return [one for one in found.values() if one is not None]
