"""The tables that integrations write; all of it over sonde's public names."""

from __future__ import annotations

import sonde


class LoopStep:
    """A step of a library's training loop, right after its end."""

    step: sonde.i64 | None = sonde.column("the step of python.torch_step that ended with it")
    library: sonde.text = sonde.column("lightning, transformers or accelerate")
    stage: sonde.text = sonde.column("train, validation, test, predict, …")
    epoch: sonde.f64 | None = sonde.column("as the library counts; parts of one where it does")
    global_step: sonde.i64 | None = sonde.column("as the library counts")


class LoopTag:
    """What a library was told to do."""

    name: sonde.text = sonde.column("model, precision, strategy, …")
    value: sonde.text = sonde.column("its value")


class LoopMetric:
    """A number that the program logged."""

    step: sonde.i64 | None = sonde.column(
        "the step of python.torch_step that was under way, if known"
    )
    global_step: sonde.i64 | None = sonde.column("as the program or its library counts")
    name: sonde.text = sonde.column("what it is called")
    value: sonde.f64 = sonde.column("the number")


class Loop:
    """One training loop of a library; starts the recording if there is none."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._emit_step = sonde.table(LoopStep)
        self._emit_tag = sonde.table(LoopTag)
        self._emit_metric = sonde.table(LoopMetric)
        self._step: int | None = None

    def begin(self, tags: dict[str, object]) -> None:
        """The loop begins; what is known of it. None: not known."""
        sonde.start()
        for name, value in tags.items():
            if value is not None:
                self._emit_tag(name, str(value))

    def end_step(self, stage: str, epoch: float | None, global_step: int | None) -> None:
        """A step is over."""
        self._step = sonde.step()
        self._emit_step(self._step, self._library, stage, epoch, global_step)

    def log(self, values: dict[str, object], global_step: int | None) -> None:
        """Numbers that the program has anyway. Tensors are left alone: to read one is to wait."""
        step = None if self._step is None else self._step + 1
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._emit_metric(step, global_step, name, float(value))
