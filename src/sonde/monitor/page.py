"""report.html: one page that contains everything it needs."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from html import escape
from typing import Any

from sonde.export.formats._asset import fill
from sonde.monitor import report_text
from sonde.monitor.chart_lines import ChartLine, ChartLines

Drawn = dict[str, Any]

# Title, unit, and the lines with their labels; of GPUs the line and the top of the scale.
_CHARTS = (
    ("CPU", "%, 100 is one processor",
     {"cpu": "watched", "machine": "whole machine", "iowait": "idle, waiting for I/O"}),
    ("Memory", "GiB", {"memory_used": "used", "memory_total": "total"}),
    ("Disk", "MiB/s", {"read": "read", "written": "written"}),
    ("Network", "MiB/s", {"received": "received", "sent": "sent"}),
)  # fmt: skip
_GPU_CHARTS = (
    ("GPU utilization", "%", "util", 100),
    ("GPU memory", "%", "memory", 100),
    ("GPU power", "W", "power", None),
    ("GPU clock", "MHz", "clock", None),
    ("GPU temperature", "°C", "temperature", None),
)


def make(report: Mapping[str, Any], lines: ChartLines) -> str:
    """Return the page; its data is compressed, so that no text in it can act as HTML or script."""
    data = {
        "about": report["about"],
        "findings": [_describe(finding) for finding in report["advice"]["findings"]],
        "summary": report["advice"]["summary"],
        "patterns": report["patterns"],
        "tables": report_text.list_tables(report["statistics"]),
        "missing": report["missing"],
        "seconds": [_round(value, 7) for value in lines.seconds],
        "gap": lines.gap_s,
        "charts": list_charts(lines),
    }
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)
    return fill(
        _read("page.html"),
        TITLE=escape(report["title"]),
        STYLE=_read("page.css"),
        SCRIPT=_read("page.js"),
        DATA=base64.b64encode(packed).decode(),
    )


def _read(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()


def _describe(finding: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("severity", "title", "rule", "who", "votes", "fired", "judged", "line", "why", "todo")
    return {**{key: finding[key] for key in keys}, "evidence": report_text.list_evidence(finding)}


def list_charts(lines: ChartLines) -> list[Drawn]:
    """Return the charts that have at least one line with values."""
    found: list[Drawn] = []
    for title, unit, name, top in _GPU_CHARTS:
        cards = {f"GPU {gpu}": card[name] for gpu, card in lines.gpus.items()}
        found.append({"title": title, "unit": unit, "top": top, "lines": _pack(cards)})
    for title, unit, names in _CHARTS:
        known = {
            label: lines.readings[name] for name, label in names.items() if name in lines.readings
        }
        found.append({"title": title, "unit": unit, "top": None, "lines": _pack(known)})
        if title == "Network" and lines.network_of:
            found[-1]["title"] += f", {lines.network_of}"
    # The processor comes first: it is always known.
    found.sort(key=lambda chart: chart["title"] != "CPU")
    return [chart for chart in found if chart["lines"]]


def _pack(lines: Mapping[str, ChartLine]) -> list[Drawn]:
    found = []
    for name, line in lines.items():
        if not line.is_known:
            continue
        packed: Drawn = {"name": name, "mean": [_round(value) for value in line.mean]}
        if line.low != line.high:
            packed["low"] = [_round(value) for value in line.low]
            packed["high"] = [_round(value) for value in line.high]
        found.append(packed)
    return found


def _round(value: float | None, digits: int = 4) -> float | None:
    """Round to what can be seen: more digits would be half of the page."""
    return None if value is None else float(f"{value:.{digits}g}")
