"""The tables that integrations write, using only sonde's public names."""

from __future__ import annotations

import sonde


class LoopStep:
    """One step of a library's training loop, written right after its end."""

    step: sonde.i64 | None = sonde.column("the step of python.torch_step that ended at this point")
    library: sonde.text = sonde.column("lightning, transformers or accelerate")
    stage: sonde.text = sonde.column("train, validation, test, predict, …")
    epoch: sonde.f64 | None = sonde.column("epoch as the library counts it; may be fractional")
    global_step: sonde.i64 | None = sonde.column("step as the library counts it")


class LoopTag:
    """One setting of a library's training loop."""

    name: sonde.text = sonde.column("model, precision, strategy, …")
    value: sonde.text = sonde.column("value of the setting")


class LoopMetric:
    """One number that the program logged."""

    step: sonde.i64 | None = sonde.column(
        "the step of python.torch_step in which it was logged, if known"
    )
    global_step: sonde.i64 | None = sonde.column("step as the program or its library counts it")
    name: sonde.text = sonde.column("name under which it was logged")
    value: sonde.f64 = sonde.column("value")


class Loop:
    """One training loop of a library; starts a recording if there is none."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._emit_step = sonde.table(LoopStep)
        self._emit_tag = sonde.table(LoopTag)
        self._emit_metric = sonde.table(LoopMetric)
        self._step: int | None = None

    def begin(self, tags: dict[str, object]) -> None:
        """Begin the loop and write what is known about it; a value of None is unknown."""
        sonde.start()
        for name, value in tags.items():
            if value is not None:
                self._emit_tag(name, str(value))

    def end_step(self, stage: str, epoch: float | None, global_step: int | None) -> None:
        """End a step."""
        number = sonde.step()
        self._step = number if number >= 0 else None
        self._emit_step(self._step, self._library, stage, epoch, global_step)

    def log(self, values: dict[str, object], global_step: int | None) -> None:
        """Write numbers that the program logs. Tensors are skipped, because reading one waits."""
        step = None if self._step is None else self._step + 1
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._emit_metric(step, global_step, name, float(value))
