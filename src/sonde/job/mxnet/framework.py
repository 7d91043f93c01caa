"""PyTorch in a profile: its operators and modules are recorded whole while the profile runs."""

from __future__ import annotations

from sonde import _core
from sonde.job.mxnet.settings import MxnetSettings
from sonde.job.recorder import recorder
from sonde.job.source_switch import switch_source
from sonde.job.torch.steps import END, steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Sum = tuple[Any, ...]  # like the rows of _core.events_summary()

_SETTLE_S = 0.5
_SOURCE = "operator"


class FrameworkRecording:
    """What a profile changes about the recording of PyTorch, and undoes when it ends."""

    def __init__(self) -> None:
        self._is_ours = False  # the source was switched on for this profile

    def begin(self, settings: MxnetSettings) -> None:
        """Have every operator, and every module of every step, recorded from now on."""
        if "torch" not in settings.parts:
            return
        steps.profiled = True
        if recorder.session is not None and not recorder.has_source(_SOURCE):
            self._is_ours = True
            switch_source(_SOURCE, True)
            # What is recorded of a step is decided when it begins.
            steps.end(END)

    def end(self) -> None:
        """Go back to what the recording does without a profile."""
        steps.profiled = False
        if self._is_ours:
            self._is_ours = False
            switch_source(_SOURCE, False)


def settle(is_open: bool) -> None:
    """Have rows written for all modules that were called. While the profile runs, the current step
    is left alone: its backward pass may be still to come."""
    if not is_open and _core.torch_has_calls():
        steps.end(END)
    _core.torch_settle(_SETTLE_S)


def read_operators() -> list[Sum]:
    """Return the sums of all operators."""
    return [make_sum("operator", *numbers) for numbers in _core.operators_summary()]


def make_sum(kind: str, name: str, count: int, total_ns: int, min_ns: int, max_ns: int) -> Sum:
    """Return a sum of times as _core.events_summary() would."""
    return (kind, None, name, count, total_ns, min_ns, max_ns, *(None,) * 6)
