"""report.html: the page of `sonde ui` as one file, with what the monitor measured on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.monitor import report_text
from sonde.monitor.chart_lines import MOST, ChartLine, ChartLines
from sonde.monitor.reading_sql import ask_gpu_lines, ask_lines
from sonde.monitor.watch import Measurement
from sonde.session import Session
from sonde.web.answer import PageAnswer
from sonde.web.opened import Opened
from sonde.web.report import make_report

Drawn = dict[str, Any]
S = 10**9

# Title, unit, and the lines with their labels; of GPUs the line and the top of the scale.
_CHARTS = (
    ("CPU", "%",
     {"cpu": "watched", "machine": "whole machine", "iowait": "idle, waiting for I/O"}),
    ("Memory", "GiB", {"memory_used": "used", "memory_total": "total"}),
    ("Disk", "MiB/s", {"read": "read", "written": "written"}),
    ("Network", "MiB/s", {"received": "received", "sent": "sent"}),
)  # fmt: skip
_GPU_CHARTS = (
    ("GPU utilization", "%", "util"),
    ("GPU memory", "%", "memory"),
    ("GPU power", "W", "power"),
    ("GPU clock", "MHz", "clock"),
    ("GPU temperature", "°C", "temperature"),
)
_PLAIN = {"GiB": ("B", 2**30), "MiB/s": ("B/s", 2**20)}  # the page has one unit for each kind


def make(
    measured: Measurement, report: Mapping[str, Any], lines: ChartLines, jobs: list[Session]
) -> str:
    """Return the page: of the recordings of what was watched as well, where these can be read."""
    session = Session(measured.session)
    given = {
        "advice": PageAnswer({"advice": _describe_advice(report["advice"])}),
        "machine": PageAnswer({"charts": list_charts(lines)}, _list_sql(measured)),
        "measured": PageAnswer(_describe(report)),
    }
    offset_ns, time = session.wall_offset_ns, measured.window
    window = Window(time.begin_ns + offset_ns, max(time.end_ns, time.begin_ns + S) + offset_ns)
    try:
        return _draw([*jobs, session], window, given)
    except Error as error:
        if not jobs:
            raise
        given["measured"].data["missing"].append(f"the recording of the job is left out: {error}")
        return _draw([session], window, given)


def _draw(sessions: list[Session], window: Window, given: Mapping[str, PageAnswer]) -> str:
    opened = Opened(sessions[-1].id, sessions, window)
    try:
        return make_report(opened, given=given)[0]
    finally:
        opened.close()


def _list_sql(measured: Measurement) -> list[str]:
    return [ask_lines(measured.window, MOST), ask_gpu_lines(measured.window, measured.gpus, MOST)]


def _describe(report: Mapping[str, Any]) -> Drawn:
    return {
        "title": report["title"],
        "about": [*report["about"], "every reading is a row of log_result.csv, beside this file"],
        "patterns": report["patterns"],
        "tables": report_text.list_tables(report["statistics"]),
        "missing": list(report["missing"]),
    }


def _describe_advice(advice: Mapping[str, Any]) -> Drawn:
    """Return the advice with its evidence as people read it."""
    findings = [
        {**finding, "shown": report_text.list_evidence(finding)} for finding in advice["findings"]
    ]
    return {"places": [], **advice, "findings": findings}


def list_charts(lines: ChartLines) -> list[Drawn]:
    """Return the charts that have at least one line with values."""
    found: list[Drawn] = []
    for title, unit, names in _CHARTS:
        known = {
            label: lines.readings[name] for name, label in names.items() if name in lines.readings
        }
        found.append(_make_chart(title, unit, known, lines))
        if title == "Network" and lines.network_of:
            found[-1]["title"] += f", {lines.network_of}"
    for title, unit, name in _GPU_CHARTS:
        cards = {f"GPU {gpu}": card[name] for gpu, card in lines.gpus.items()}
        found.append(_make_chart(title, unit, cards, lines))
    # The processor comes first: it is always known. Then the GPUs.
    found.sort(key=lambda chart: (chart["title"][:3] != "CPU", chart["title"][:3] != "GPU"))
    return [chart for chart in found if chart["lines"]]


def _make_chart(title: str, unit: str, known: Mapping[str, ChartLine], lines: ChartLines) -> Drawn:
    unit, times = _PLAIN.get(unit, (unit, 1))
    return {"title": title, "unit": unit, "gap": lines.gap_s * S,
            "lines": list(_pack(known, lines.seconds, times))}  # fmt: skip


def _pack(known: Mapping[str, ChartLine], seconds: list[float], times: int) -> Iterator[Drawn]:
    """Yield lines with the moments of their values; where nothing was measured, there is none."""
    for name, line in known.items():
        if not line.is_known:
            continue
        at = [place for place, value in enumerate(line.mean) if value is not None]
        packed: Drawn = {"name": name, "at": [round(seconds[place] * S) for place in at],
                         "values": [_round(line.mean[place], times) for place in at]}  # fmt: skip
        if line.low != line.high:
            packed["low"] = [_round(line.low[place], times) for place in at]
            packed["high"] = [_round(line.high[place], times) for place in at]
        yield packed


def _round(value: float | None, times: int) -> float | None:
    """Round to what can be seen: more digits would be half of the page."""
    return None if value is None else float(f"{value * times:.4g}")
