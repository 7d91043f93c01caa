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
        self._walks: dict[int, int] = {}
        self._roots: dict[str, int] = {}
        self._next = 1
        self._fresh: list[Named] = []  # not written down yet
        self._pattern: re.Pattern[str] | None = None
        self.tracer: _core.TorchTracer | None = None

    def filter(self, pattern: str) -> None:
        """From now on record only modules whose name has this in it; empty: all."""
        self._pattern = re.compile(pattern) if pattern else None
        for named in self._known.values():
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
        root = self._find_root(root_name)
        if root is not None and self._walks.get(id(root), 0) < _WALKS:
            self._walk(root, root_name)
        if id(module) not in self._known:  # made on the fly, or kept where torch does not look
            self._add(module, f"{parent.name}.({type(module).__name__})", False)

    def list_roots(self) -> list[tuple[Any, str]]:
        """Models that the program calls itself, and their names."""
        roots = [(named.ref(), named.name) for named in self._by_key.values() if named.is_root]
        return [(model, name) for model, name in roots if model is not None]

    def _name_root(self, module: object) -> str:
        kind = type(module).__name__
        number = self._roots[kind] = self._roots.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}#{number}"

    def _find_root(self, name: str) -> Any:
        for named in self._by_key.values():
            if named.is_root and named.name == name:
                return named.ref()
        return None

    def _walk(self, root: Any, root_name: str) -> None:
        self._walks[id(root)] = self._walks.get(id(root), 0) + 1
        for path, module in root.named_modules():
            if id(module) not in self._known:
                self._add(module, f"{root_name}.{path}" if path else root_name, not path)

    def _add(self, module: Any, name: str, is_root: bool) -> None:
        address, key = id(module), self._next
        self._next += 1
        named = Named(key, name, ref(module, lambda _: self._forget(address, key)), is_root)
        self._known[address] = self._by_key[key] = named
        self._tell(module, named)
        self._fresh.append(named)

    def describe(self) -> None:
        """Write down what is new, between steps: the program may be tracing its tensors while a
        module is called, and would find our looks at them in its trace."""
        fresh, self._fresh = self._fresh, []
        for named in fresh:
            module: Any = named.ref()
            if module is not None:
                self._emit(_core.clock_ns(), named.name, type(module).__name__, *_measure(module),
                           named.name.rpartition(".")[0] or None)  # fmt: skip

    def _tell(self, module: object, named: Named) -> None:
        ignored = self._pattern is not None and self._pattern.search(named.name) is None
        if self.tracer is not None:
            self.tracer.add_module(module, named.name, named.key, ignored)

    def _forget(self, address: int, key: int) -> None:
        # Called in the middle of anything: only what cannot fail.
        self._by_key.pop(key, None)
        if self._known.get(address) is not None and self._known[address].key == key:
            del self._known[address]
            self._walks.pop(address, None)
            if self.tracer is not None:
                self.tracer.forget(address)


def _measure(module: Any) -> tuple[int, int, str | None, str | None]:
    """Numbers that a module learns, with its parts and without; their type, and where they are."""
    own = sum(one.numel() for one in module.parameters(recurse=False))
    every = list(module.parameters())
    if not every:
        return 0, 0, None, None
    kind = str(every[0].dtype).removeprefix("torch.")
    return sum(one.numel() for one in every), own, kind, str(every[0].device)


def describe_shapes(*inputs: object) -> str | None:
    """Shapes of the tensors among the arguments of a call: `(8, 128)`."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    shapes = [tuple(one.shape) for one in inputs if tensor and isinstance(one, tensor)]
    return "; ".join(map(str, shapes)) if shapes else None
