"""The five pictures of a report, drawn with matplotlib if it is installed."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sonde.monitor.chart_lines import ChartLine, ChartLines
from sonde.monitor.folder import IMAGES, PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HINT = "the pictures need matplotlib: pip install 'sonde[report]'"
COLOURS = ("#2f6fde", "#e8710a", "#1b9e77", "#d0328c", "#7c5cd6", "#a6761d", "#0aa5c2", "#c43c3c")
_SOFT, _LINE = "#626a76", "#e4e7ec"
_TOGETHER = 3  # up to this many GPUs share one axis; more get an axis each


def write(folder: str, lines: ChartLines) -> tuple[list[str], str | None]:
    """Draw the pictures; return their paths within the folder, and why any are missing."""
    try:
        import matplotlib.figure as figures  # imported only here: it takes a second
    except ImportError:
        return [], HINT
    found: list[str] = []
    for name, draw in zip(PICTURES, _DRAW, strict=True):
        figure = figures.Figure(figsize=(10, 4.6), dpi=120, layout="constrained")
        draw(figure, lines)
        path = f"{IMAGES}/{name}.png"
        try:
            os.makedirs(os.path.join(folder, IMAGES), exist_ok=True)
            figure.savefig(os.path.join(folder, path))
        except OSError as error:
            return found, f"{path} could not be written: {error.strerror}"
        found.append(path)
    return found, None


def _make_axes(figure: Figure, title: str, label: str, lines: ChartLines) -> Axes:
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=12)
    _clean(axes, label)
    axes.set_xlabel("Time (s)", color=_SOFT)
    if lines.seconds:
        axes.set_xlim(0, max(lines.seconds[-1], 1e-3))
    return axes


def _clean(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, color=_SOFT)
    axes.grid(True, color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _plot(axes: Axes, lines: ChartLines, line: ChartLine, label: str, colour: str) -> Any:
    """Plot one line; a gap in time is a gap in the line."""
    mean, low, high = (_break(lines, values) for values in (line.mean, line.low, line.high))
    times = _break(lines, list(lines.seconds))
    if any(a != b and not math.isnan(a + b) for a, b in zip(low, high, strict=True)):
        axes.fill_between(times, low, high, color=colour, alpha=0.16, linewidth=0)
    return axes.plot(times, mean, color=colour, linewidth=1.4, label=label)[0]


def _break(lines: ChartLines, values: Iterable[float | None]) -> list[float]:
    found: list[float] = []
    before = None
    for second, value in zip(lines.seconds, values, strict=True):
        if before is not None and second - before > lines.gap_s:
            found.append(math.nan)
        found.append(math.nan if value is None else value)
        before = second
    return found


def _finish(axes: Axes, handles: list[Any]) -> None:
    """Put the legend below the title, where it hides nothing; say so if nothing was measured."""
    if not handles:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center",
                  color=_SOFT, fontsize=12)  # fmt: skip
        return
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=8,
                frameon=False, fontsize=9, handlelength=1.2, columnspacing=1.0,
                borderaxespad=0.1)  # fmt: skip


def _draw_gpus(figure: Figure, lines: ChartLines, name: str, title: str, label: str) -> None:
    known = {gpu: card[name] for gpu, card in lines.gpus.items() if card[name].is_known}
    if len(known) > _TOGETHER:
        _draw_strips(figure, lines, known, f"{title} (%)")
        return
    axes = _make_axes(figure, title, label, lines)
    handles = [
        _plot(axes, lines, line, f"GPU {gpu}", COLOURS[at % len(COLOURS)])
        for at, (gpu, line) in enumerate(known.items())
    ]
    axes.set_ylim(0, 103)
    _finish(axes, handles)


def _draw_strips(
    figure: Figure, lines: ChartLines, known: dict[int, ChartLine], title: str
) -> None:
    """Draw a strip for each GPU over one time axis, with its mean."""
    figure.set_figheight(1.2 + 0.72 * len(known))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    rows = figure.subplots(len(known), 1, sharex=True)
    for at, (axes, (gpu, line)) in enumerate(zip(rows, known.items(), strict=True)):
        colour = COLOURS[at % len(COLOURS)]
        _clean(axes, "")
        _plot(axes, lines, line, "", colour)
        axes.fill_between(_break(lines, list(lines.seconds)), 0, _break(lines, line.mean),
                          color=colour, alpha=0.25, linewidth=0)  # fmt: skip
        axes.set_ylim(0, 103)
        axes.set_yticks([0, 100])
        axes.set_ylabel(f"GPU {gpu}", rotation=0, ha="right", va="center", color=_SOFT)
        values = [value for value in line.mean if value is not None]
        axes.text(1.01, 0.5, f"mean {sum(values) / len(values):.0f} %", va="center", color=_SOFT,
                  transform=axes.transAxes)  # fmt: skip
    rows[-1].set_xlim(0, max(lines.seconds[-1], 1e-3))
    rows[-1].set_xlabel("Time (s)", color=_SOFT)


def _draw_gpu_memory(figure: Figure, lines: ChartLines) -> None:
    _draw_gpus(figure, lines, "memory", "GPU memory", "memory used (%)")


def _draw_gpu_use(figure: Figure, lines: ChartLines) -> None:
    _draw_gpus(figure, lines, "util", "GPU utilization", "utilization (%)")


def _draw_both(figure: Figure, lines: ChartLines) -> None:
    """Draw CPU and GPUs over one time axis, each with its own scale."""
    axes = _make_axes(figure, "CPU and GPU", "CPU (%, 100 is one processor)", lines)
    handles = []
    cpu = lines.readings.get("cpu")
    if cpu is not None and cpu.is_known:
        handles.append(_plot(axes, lines, cpu, "CPU", COLOURS[0]))
        known = [value for value in cpu.high if value is not None]
        axes.set_ylim(0, max(100, *known) * 1.03)
    cards = {f"GPU {gpu}": card["util"] for gpu, card in lines.gpus.items()}
    known_cards = {name: line for name, line in cards.items() if line.is_known}
    if len(known_cards) > _TOGETHER:
        known_cards = {f"mean, lowest and highest of {len(known_cards)} GPUs":
                       _join(list(known_cards.values()))}  # fmt: skip
    if known_cards:
        right = axes.twinx()
        _clean(right, "GPU (%)")
        right.grid(False)
        right.set_ylim(0, 103)
        for at, (name, line) in enumerate(known_cards.items(), 1):
            handles.append(_plot(right, lines, line, name, COLOURS[at % len(COLOURS)]))
    _finish(axes, handles)


def _join(cards: list[ChartLine]) -> ChartLine:
    """Return one line for several: their mean, lowest and highest."""
    columns = zip(*(card.mean for card in cards), strict=True)
    known = [[value for value in values if value is not None] for values in columns]
    return ChartLine(
        "util", "%", [sum(values) / len(values) if values else None for values in known],
        [min(values, default=None) for values in known],
        [max(values, default=None) for values in known],
    )  # fmt: skip


def _draw_traffic(figure: Figure, lines: ChartLines, title: str, wanted: dict[str, str]) -> None:
    axes = _make_axes(figure, title, "MiB/s", lines)
    handles = [
        _plot(axes, lines, lines.readings[name], label, COLOURS[at])
        for at, (name, label) in enumerate(wanted.items())
        if name in lines.readings and lines.readings[name].is_known
    ]
    with contextlib.suppress(ValueError):  # nothing to draw
        axes.set_ylim(bottom=0)
    _finish(axes, handles)


def _draw_disk(figure: Figure, lines: ChartLines) -> None:
    _draw_traffic(figure, lines, "Disk", {"read": "read", "written": "written"})


def _draw_network(figure: Figure, lines: ChartLines) -> None:
    title = ", ".join(filter(None, ("Network", lines.network_of)))
    _draw_traffic(figure, lines, title, {"received": "received", "sent": "sent"})


_DRAW: Sequence[Callable[[Figure, ChartLines], None]] = (
    _draw_gpu_memory, _draw_gpu_use, _draw_both, _draw_disk, _draw_network,
)  # fmt: skip
