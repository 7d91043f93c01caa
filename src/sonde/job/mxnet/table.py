"""The text that `dumps` returns: sums of all regions, counters and markers, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Sums = dict[str, dict[str, dict[str, dict[str, Any]]]]

FORMATS = ("table", "json")
SORTS = {"total": "Total", "avg": "Avg", "min": "Min", "max": "Max", "count": "Count"}
UNITS = {"Time": "ms", "Memory": "kB", "Counter": "as set", "Marker": "times"}

# The columns of each part, besides the name, titled as in the original where it has the part.
_COLUMNS = {
    "Time": {"Count": "Total Count", "Total": "Time (ms)", "Min": "Min Time (ms)",
             "Max": "Max Time (ms)", "Avg": "Avg Time (ms)"},
    "Memory": {"Count": "Total Count", "Min": "Min Use  (kB)", "Max": "Max Use  (kB)",
               "Avg": "Avg Use  (kB)"},
    "Counter": {"Count": "Total Count", "Min": "Min Value", "Max": "Max Value",
                "Avg": "Avg Value", "Last": "Last Value"},
    "Marker": {"Count": "Total Count"},
}  # fmt: skip
_NAME_WIDTH, _WIDTH = 25, 16


def collect(summary: Iterable[Sequence[Any]], memory: Mapping[str, Mapping[str, Any]]) -> Sums:
    """Return the numbers by part, category and name. `summary` is from _core.events_summary()."""
    found: Sums = {part: {} for part in _COLUMNS}
    for kind, domain, name, count, *numbers in summary:
        part, values = _read_numbers(kind, count, numbers)
        if count:
            found[part].setdefault(_name_category(kind, domain), {})[name] = values
    for device, values in memory.items():
        found["Memory"].setdefault("Device Storage", {})[f"Memory: {device}"] = dict(values)
    return found


def _read_numbers(kind: str, count: int, numbers: Sequence[Any]) -> tuple[str, Any]:
    total_ns, min_ns, max_ns, low, high, mean, last, *_ = numbers
    if kind == "counter":
        # The mean is a float, which does not hold every whole number.
        seen = {"Min": low, "Max": high, "Avg": low if low == high else mean, "Last": last}
        return "Counter", {"Count": count, **{key: _simplify(seen[key]) for key in seen}}
    if kind == "marker":
        return "Marker", {"Count": count}
    times = {"Total": total_ns, "Min": min_ns, "Max": max_ns, "Avg": total_ns / max(count, 1)}
    return "Time", {"Count": count, **{name: ns / 1e6 for name, ns in times.items()}}


def _simplify(value: float) -> float | None:
    """Return a whole number as an int, and None for a value that JSON cannot express."""
    if not isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) <= 2**63 else value


def _name_category(kind: str, domain: str | None) -> str:
    """Return the category, as mxnet names it."""
    if kind == "event":
        return "event"
    if kind == "frame":
        return "frame" if domain is None else f"{domain},frame"
    return kind if domain is None else domain


def order(sums: Sums, sort_by: str, ascending: bool) -> Sums:
    """Return the same sums sorted; names without the wanted number go by their average or count."""
    wanted = SORTS[sort_by]

    def rank(entry: tuple[str, dict[str, Any]]) -> tuple[Any, str]:
        values = entry[1]
        value = values.get(wanted, values.get("Avg"))
        return values["Count"] if value is None else value, entry[0]

    return {
        part: {
            category: dict(sorted(names.items(), key=rank, reverse=not ascending))
            for category, names in sorted(categories.items())
        }
        for part, categories in sums.items()
    }


def write_json(sums: Sums) -> str:
    """Return all digits as JSON. Parts that the original lacks (counters, markers) appear only
    if they have entries."""
    shown = {part: sums[part] for part in sums if sums[part] or part in ("Time", "Memory")}
    units = {part: UNITS[part] for part in shown}
    return json.dumps({**shown, "Unit": units}, indent=4) + "\n"


def write_table(sums: Sums) -> str:
    """Return the table as mxnet lays it out, with the column of names as wide as needed."""
    lines = ["", "Profile Statistics:", "\tNote the difference in units for different entries."]
    for part, categories in sums.items():
        for category, names in categories.items():
            suffix = {"Counter": ",counter", "Marker": ",instant_marker"}.get(part, "")
            lines += _write_category(part, category + suffix, names)
    return "\n".join(lines) + "\n"


def _write_category(part: str, category: str, names: Mapping[str, Mapping[str, Any]]) -> list[str]:
    columns = _COLUMNS[part]
    shown = {name: _escape(name) for name in names}
    width = max(_NAME_WIDTH, *(len(name) for name in shown.values()))
    rules = ["-" * min(len(title), 13) for title in columns.values()]
    return [
        _escape(category),
        "=" * 17,
        _write_row("Name", columns.values(), width),
        _write_row("----", rules, width),
        *(
            _write_row(shown[name], [_show(values[key]) for key in columns], width)
            for name, values in names.items()
        ),
        "",
    ]


def _write_row(name: str, cells: Iterable[str], width: int) -> str:
    return name.ljust(width) + " ".join(cell.rjust(_WIDTH) for cell in cells)


def _show(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str("" if value is None else value)


def _escape(name: str) -> str:
    """Return the name on one line, with unprintable characters escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)
