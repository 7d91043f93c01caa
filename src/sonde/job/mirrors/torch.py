"""PyTorch's profiler: regions and markers are torch.profiler.record_function."""

from __future__ import annotations

import sys

from sonde.job.mirrors._plain import clean
from sonde.job.source_context import SourceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Mirror:
    """Passes events on to torch's profiler, once the program has imported torch.

    A record_function may end in any order and in any thread. Counters have no counterpart there."""

    def __init__(self, context: SourceContext) -> None:
        self._make = _find_record_function()
        self._open: dict[int, Any] = {}
        if self._make is None:
            context.detail = "waiting for the program to import torch"

    def begin(self, _domain: object, name: str, _kind: str, number: int, _value: object) -> None:
        if self._make is None:
            self._make = _find_record_function()
            if self._make is None:
                return
        region = self._make(clean(name))
        region.__enter__()
        self._open[number] = region

    def end(self, _domain: object, _name: str, _kind: str, number: int, _value: object) -> None:
        region = self._open.pop(number, None)
        if region is not None:
            region.__exit__(None, None, None)

    def mark(self, domain: object, name: str, kind: str, number: int, value: object) -> None:
        self.begin(domain, name, kind, number, value)
        self.end(domain, name, kind, number, value)

    def stop(self) -> None:
        for number in list(self._open):
            self.end(None, "", "", number, None)


def _find_record_function() -> Any:
    """Return the class, or None until the program has imported all of torch."""
    profiler = sys.modules.get("torch.autograd.profiler")
    is_complete = "compile" in getattr(sys.modules.get("torch"), "__dict__", {})
    return getattr(profiler, "record_function", None) if is_complete else None
