"""Write the values of watched variables at the end of a step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from sonde import plugins
from sonde.job.torch.steps import Step
from sonde.job.variables.finder import Missing, Watch, is_kind, name_kind, parse
from sonde.job.variables.tensors import (
    NOTHING,
    Copies,
    Copy,
    Layout,
    describe_array,
    describe_tensor,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from sonde.job.variables.tensors import Summary

    Head: TypeAlias = tuple[int, int, str, str]

_MAX_TEXTS = 1000  # different texts; they are kept for ever, and a loop can make any number
_NO_ARRAY = (None,) * 9


class Variables:
    """Finds watched variables in the frames of the thread that ends a step, and writes them."""

    def __init__(
        self, watched: str, emit: Callable[..., object], show: Callable[[object], str]
    ) -> None:
        self._watches = parse(watched)
        self._emit, self._show = emit, show
        self._own_folder = os.path.join(plugins.PACKAGE, "")
        self._missing: dict[Watch, str] = {}
        self._texts: set[str] = set()
        self._copies: Copies | None = None
        self._pid = os.getpid()
        self._waiting: list[tuple[Head, str, Layout, Copy]] = []

    def record(self, step: Step) -> None:
        """Write all variables; those on a device are written when they have been copied."""
        if self._waiting:
            self._collect()
        frame = sys._getframe(1)
        for watch in self._watches:
            head = (step.end_ns, step.number, watch.func, watch.text)
            value = watch.read(frame, self._own_folder)
            if type(value) is Missing:
                self._write_missing(watch, head, value.why)
                continue
            self._missing.pop(watch, None)
            if not self._write_array(head, value):
                number = _find_number(value)
                text = None if number is not None else self._keep(self._describe(value))
                self._emit(*head, text, number, self._keep(name_kind(value)), *_NO_ARRAY)

    def finish(self) -> None:
        """Write unfinished copies without their numbers: we never wait for a device."""
        if self._pid != os.getpid():
            return  # in a forked child the device and its copies are the parent's
        self._collect()
        waiting, self._waiting = self._waiting, []
        for head, kind, layout, _copy in waiting:
            self._write(head, kind, layout, NOTHING)

    def _write_missing(self, watch: Watch, head: Head, why: str) -> None:
        # Written once, and again if the variable existed in between.
        if self._missing.get(watch) != why:
            self._missing[watch] = why
            self._emit(*head, self._keep(why), None, "missing", *_NO_ARRAY)

    # ---- arrays ----------------------------------------------------------------------------------

    def _write_array(self, head: Head, value: Any) -> bool:
        """Write the value if it is an array of torch or numpy; return whether it is."""
        torch = sys.modules.get("torch")
        layout = describe_array(value)
        if layout is None and torch is not None:
            layout = describe_tensor(value, torch)
        if layout is None:
            return False
        kind = name_kind(value)
        if layout.device == "cpu":
            self._write(head, kind, layout, layout.summarize())
        else:
            self._fetch(head, kind, layout, value)
        return True

    def _fetch(self, head: Head, kind: str, layout: Layout, value: Any) -> None:
        copy = None
        if layout.device.startswith("cuda:"):
            self._copies = self._copies or Copies(sys.modules["torch"])
            copy = self._copies.start(value, layout)
        if copy is None:
            self._write(head, kind, layout, NOTHING)
        else:
            self._waiting.append((head, kind, layout, copy))

    def _collect(self) -> None:
        """Write the variables whose copies are finished."""
        left = []
        for entry in self._waiting:
            head, kind, layout, copy = entry
            if self._copies is not None and self._copies.is_done(copy):
                self._write(head, kind, layout, self._copies.end(copy))
            else:
                left.append(entry)
        self._waiting = left

    def _write(self, head: Head, kind: str, layout: Layout, summary: Summary) -> None:
        seen, nans, least, largest, mean = summary
        number = mean if nans == 0 else float("nan")
        self._emit(
            *head, None, number if layout.elements == 1 else None, kind,
            self._keep("x".join(map(str, layout.shape)) or "scalar"), layout.dtype, layout.device,
            layout.elements, seen, least, largest, mean, nans if seen else None,
        )  # fmt: skip

    # ---- anything else ---------------------------------------------------------------------------

    def _describe(self, value: object) -> str:
        """Return the value if its type is built in, otherwise only the type: addresses would make
        ever new texts."""
        text = self._show(value)
        at = text.find(" at 0x")
        return f"{text[:at]}>" if text.startswith("<") and at > 0 else text

    def _keep(self, text: str) -> str:
        """Return the text, or a replacement if there are too many different ones."""
        if text not in self._texts:
            if len(self._texts) >= _MAX_TEXTS:
                return f"<more than {_MAX_TEXTS} different>"
            self._texts.add(text)
        return text


def _find_number(value: Any) -> float | None:
    """Return a number as a float, or None if the value is not a number."""
    kind = type(value)
    if kind in (bool, float) or (kind is int and value.bit_length() < 1000):
        return float(value)
    numpy: Any = sys.modules.get("numpy")
    # Only numpy's own types: one that inherits from them may have a __float__ of its own.
    if numpy is None or kind.__module__ != "numpy":
        return None
    if (
        is_kind(value, numpy.bool_)
        or is_kind(value, numpy.integer)
        or is_kind(value, numpy.floating)
    ):
        return float(value)
    return None
