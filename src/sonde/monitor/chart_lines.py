"""The lines that are drawn, in pictures and in the page, read from SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sonde.monitor.series import GPU_LINES, LINES, Window, ask_gpu_lines, ask_lines
from sonde.store.recording import Recording

MOST = 3000  # steps of time: enough to zoom in, and three hundred kilobytes for eight GPUs
Values = list[float | None]


@dataclass(frozen=True)
class Line:
    """One thing over time: its mean in every step, and between what it moved."""

    name: str
    unit: str
    mean: Values
    low: Values
    high: Values

    @property
    def is_known(self) -> bool:
        """Is there anything to draw?"""
        return any(value is not None for value in self.mean)


@dataclass(frozen=True)
class Lines:
    """All of them on one axis of time: seconds since the begin; `gap_s` apart is a hole."""

    seconds: list[float] = field(default_factory=list)
    gap_s: float = 2.5
    looks: dict[str, Line] = field(default_factory=dict)
    gpus: dict[int, dict[str, Line]] = field(default_factory=dict)


def read(recording: Recording, window: Window, gpus: Sequence[int] | None) -> Lines:
    """The lines of a window."""
    rows = recording.query(ask_lines(window, MOST)).to_pydict()
    steps = {step: at for at, step in enumerate(rows["step"])}
    seconds = [(t_ns - window.begin_ns) / 1e9 for t_ns in rows["t_ns"]]
    every_s = max(window.every_ns / 1e9, window.seconds / MOST)
    cards: dict[int, dict[str, Line]] = {}
    for row in recording.query(ask_gpu_lines(window, gpus, MOST)).to_pylist():
        if row["gpu"] not in cards:
            cards[row["gpu"]] = {name: _make_empty(name, unit, len(steps))
                                 for name, unit, _sql in GPU_LINES}  # fmt: skip
        at = steps[row["step"]]
        for name, line in cards[row["gpu"]].items():
            line.mean[at], line.low[at], line.high[at] = (
                row[name], row[f"{name}_low"], row[f"{name}_high"],
            )  # fmt: skip
    looks = {name: Line(name, unit, rows[name], rows[f"{name}_low"], rows[f"{name}_high"])
             for name, unit, _sql in LINES}  # fmt: skip
    return Lines(seconds, 2.5 * every_s, looks, cards)


def _make_empty(name: str, unit: str, count: int) -> Line:
    return Line(name, unit, [None] * count, [None] * count, [None] * count)
