"""The shapes of the tensors that a module is given, as text: `[[4,8],[4]]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from sonde import _core
from sonde.job.torch.seams import is_tracing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_TENSORS, _MOST_ITEMS, _MOST_DEPTH = 16, 64, 3


def describe_inputs(*args: object, **kwargs: object) -> str | None:
    """Return the shapes of all tensors in the arguments of a call; None if there are none."""
    # A traced program would contain the reading of a shape.
    if is_tracing():
        return None
    # The core drops whatever is raised in here: that must not be the program's own Ctrl-C.
    return _core.undisturbed(  # type: ignore[return-value]
        lambda: _describe((*args, *kwargs.values()))
    )


def _describe(values: tuple[object, ...]) -> str | None:
    torch = sys.modules["torch"]
    shapes: list[str] = []
    # A subclass of Tensor may have code of its own for every attribute.
    with torch._C.DisableTorchFunction():
        for tensor in _iter_tensors(values, torch.Tensor, _MOST_DEPTH):
            if len(shapes) == _MOST_TENSORS:
                shapes.append("…")
                break
            shapes.append(_show_shape(tensor.shape))  # type: ignore[attr-defined]
    return f"[{','.join(shapes)}]" if shapes else None


def _iter_tensors(values: Any, kind: type, depth: int) -> Iterator[object]:
    """Yield the tensors in plain containers; other objects would run code of the program."""
    items = values.values() if type(values) is dict else values
    for at, value in enumerate(items):
        if at == _MOST_ITEMS:
            return
        if isinstance(value, kind):
            yield value
        elif depth and type(value) in (tuple, list, dict):
            yield from _iter_tensors(value, kind, depth - 1)


def _show_shape(shape: object) -> str:
    # A size that is not known yet is not a plain int, and must not be asked for.
    sizes = (str(size) if type(size) is int else "?" for size in shape)  # type: ignore[attr-defined]
    return f"[{','.join(sizes)}]"
