"""Describe the shapes of a module's input tensors as text: `[[4,8],[4]]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from sonde import _core
from sonde.job.torch.seams import is_tracing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_TENSORS, _MAX_ITEMS, _MAX_DEPTH = 16, 64, 3


def describe_inputs(*args: object, **kwargs: object) -> str | None:
    """Return the shapes of all tensors in the arguments of a call; None if there are none."""
    # While the program is being traced, reading a shape would become part of the trace.
    if is_tracing():
        return None
    # The core drops any exception raised in here, which must not be the program's own Ctrl-C.
    return _core.undisturbed(lambda: _describe((*args, *kwargs.values())))


def _describe(values: tuple[object, ...]) -> str | None:
    torch = sys.modules["torch"]
    shapes: list[str] = []
    # A subclass of Tensor may run code of its own for every attribute.
    with torch._C.DisableTorchFunction():
        for tensor in _iter_tensors(values, torch.Tensor, _MAX_DEPTH):
            if len(shapes) == _MAX_TENSORS:
                shapes.append("…")
                break
            shapes.append(_show_shape(tensor.shape))  # type: ignore[attr-defined]
    return f"[{','.join(shapes)}]" if shapes else None


def _iter_tensors(values: Any, kind: type, depth: int) -> Iterator[object]:
    """Yield the tensors in plain containers; other objects would run code of the program."""
    items = values.values() if type(values) is dict else values
    for at, value in enumerate(items):
        if at == _MAX_ITEMS:
            return
        if isinstance(value, kind):
            yield value
        elif depth and type(value) in (tuple, list, dict):
            yield from _iter_tensors(value, kind, depth - 1)


def _show_shape(shape: object) -> str:
    # A symbolic size is not a plain int, and reading its value would fix it.
    sizes = (str(size) if type(size) is int else "?" for size in shape)  # type: ignore[attr-defined]
    return f"[{','.join(sizes)}]"
