"""Hugging Face accelerate: `Accelerator(log_with=SondeTracker())`, and `end_step(accelerator)`."""

from __future__ import annotations

import accelerate
from accelerate.tracking import GeneralTracker

from sonde.integrations._loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_Tracker: Any = GeneralTracker


class SondeTracker(_Tracker):  # type: ignore[misc]  # the type of its base is unknown to mypy
    """Records what the program passes to `init_trackers` and `log`."""

    name = "sonde"
    requires_logging_directory = False
    main_process_only = False  # every rank has a recording of its own

    def __init__(self) -> None:
        super().__init__()
        self._loop = Loop("accelerate")
        self._is_begun = False

    def start(self) -> None:
        """Begin to record: `init_trackers` calls this, with a configuration or without."""
        self._begin({})

    @property
    def tracker(self) -> Loop:
        return self._loop

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._begin(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_named: Any) -> None:
        if not self._is_begun:  # old versions of Accelerate call no `start`
            self._begin({})
        self._loop.log(values, step)

    def _begin(self, values: dict[str, Any]) -> None:
        library = {} if self._is_begun else {"library": f"accelerate {accelerate.__version__}"}
        self._is_begun = True
        self._loop.begin({**library, **values})


_loop: Loop | None = None
_steps = 0


def end_step(accelerator: Any, epoch: float | None = None) -> None:
    """End a step, unless gradients are still being accumulated; call this after
    `optimizer.step()`."""
    global _loop, _steps
    if not accelerator.sync_gradients:
        return
    if _loop is None:
        _loop = Loop("accelerate")
    _steps += 1
    _loop.end_step("train", epoch, _steps)
