"""Hugging Face transformers: `Trainer(..., callbacks=[SondeCallback()])`."""

from __future__ import annotations

import transformers

from sonde.integrations._loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_Callback: Any = transformers.TrainerCallback


class SondeCallback(_Callback):  # type: ignore[misc]  # the type of its base is unknown to mypy
    """Ends sonde's steps where the Trainer's end, and records their epoch, number and stage, and
    the numbers that the Trainer logs."""

    def __init__(self) -> None:
        self._loop = Loop("transformers")

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        del control
        self._loop.begin({
            "library": f"transformers {transformers.__version__}",
            "model": type(named.get("model")).__qualname__,
            "run": getattr(args, "run_name", None),
            "max_steps": state.max_steps,
            "batch_size": args.per_device_train_batch_size,
            "accumulate": args.gradient_accumulation_steps,
            "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
            "world_size": args.world_size,
            "rank": args.process_index,
        })  # fmt: skip

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        del args, control, named
        self._loop.end_step("train", state.epoch, state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        del args, control, named
        self._loop.end_step("evaluate", state.epoch, state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        del args, control
        self._loop.log(named.get("logs") or {}, state.global_step)
