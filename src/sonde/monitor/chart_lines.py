"""The lines of the charts, in pictures and in the page, read with SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sonde.monitor.reading_sql import GPU_LINES, LINES, MeasuredTime, ask_gpu_lines, ask_lines
from sonde.store.recording import Recording

MOST = 3000  # time steps: enough to zoom in, and only 300 kB for eight GPUs
Values = list[float | None]


@dataclass(frozen=True)
class ChartLine:
    """One value over time: its mean, lowest and highest in every time step."""

    name: str
    unit: str
    mean: Values
    low: Values
    high: Values

    @property
    def is_known(self) -> bool:
        """Whether there is anything to draw."""
        return any(value is not None for value in self.mean)


@dataclass(frozen=True)
class ChartLines:
    """All lines on one time axis, in seconds; steps more than `gap_s` apart leave a gap."""

    seconds: list[float] = field(default_factory=list)
    gap_s: float = 2.5
    readings: dict[str, ChartLine] = field(default_factory=dict)
    gpus: dict[int, dict[str, ChartLine]] = field(default_factory=dict)
    network_of: str = ""


def read(recording: Recording, window: MeasuredTime, gpus: Sequence[int] | None) -> ChartLines:
    """Return the lines of the measured time."""
    rows = recording.query(ask_lines(window, MOST)).to_pydict()
    steps = {step: at for at, step in enumerate(rows["step"])}
    seconds = [(t_ns - window.begin_ns) / 1e9 for t_ns in rows["t_ns"]]
    every_s = max(window.every_ns / 1e9, window.seconds / MOST)
    cards: dict[int, dict[str, ChartLine]] = {}
    for row in recording.query(ask_gpu_lines(window, gpus, MOST)).to_pylist():
        if row["gpu"] not in cards:
            cards[row["gpu"]] = {name: _make_empty(name, unit, len(steps))
                                 for name, unit, _sql in GPU_LINES}  # fmt: skip
        at = steps[row["step"]]
        for name, line in cards[row["gpu"]].items():
            line.mean[at], line.low[at], line.high[at] = (
                row[name], row[f"{name}_low"], row[f"{name}_high"],
            )  # fmt: skip
    readings = {name: ChartLine(name, unit, rows[name], rows[f"{name}_low"], rows[f"{name}_high"])
             for name, unit, _sql in LINES}  # fmt: skip
    return ChartLines(seconds, 2.5 * every_s, readings, cards, window.scope.network_of)


def _make_empty(name: str, unit: str, count: int) -> ChartLine:
    return ChartLine(name, unit, [None] * count, [None] * count, [None] * count)
