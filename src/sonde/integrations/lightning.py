"""PyTorch Lightning: `Trainer(callbacks=[SondeCallback()])`."""

from __future__ import annotations

import sys
from importlib import import_module

from sonde.integrations._loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _find_library() -> Any:
    """Return the package that the program uses: two packages contain the same code."""
    used = [name for name in _NAMES if name in sys.modules]
    for name in used or _NAMES:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("Lightning is not installed; run `pip install lightning`")


_library = _find_library()
_Callback: Any = _library.Callback


class SondeCallback(_Callback):  # type: ignore[misc]  # the type of its base is unknown to mypy
    """Ends sonde's steps where Lightning's end, and records their epoch, number and stage."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = Loop("lightning")
        self._global_step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._global_step = trainer.global_step
        self._loop.begin({
            "library": f"lightning {_library.__version__}",
            "stage": stage,
            "model": type(pl_module).__qualname__,
            "precision": trainer.precision,
            "strategy": type(trainer.strategy).__name__,
            "world_size": trainer.world_size,
            "rank": trainer.global_rank,
            "accumulate": trainer.accumulate_grad_batches,
        })  # fmt: skip

    def on_train_batch_end(self, trainer: Any, *_more: Any, **_named: Any) -> None:
        # One step may accumulate the gradients of several batches.
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._end(trainer, "train")

    def on_validation_batch_end(self, trainer: Any, *_more: Any, **_named: Any) -> None:
        self._end(trainer, "sanity_check" if trainer.sanity_checking else "validation")

    def on_test_batch_end(self, trainer: Any, *_more: Any, **_named: Any) -> None:
        self._end(trainer, "test")

    def on_predict_batch_end(self, trainer: Any, *_more: Any, **_named: Any) -> None:
        self._end(trainer, "predict")

    def _end(self, trainer: Any, stage: str) -> None:
        self._loop.end_step(stage, trainer.current_epoch, trainer.global_step)
