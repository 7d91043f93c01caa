"""Numbers and names as the live view writes them."""

from __future__ import annotations

from sonde.tui.tree import Unit

MISSING = "-"
WINDOWS = (1.0, 5.0, 15.0, 60.0, 300.0, None)  # seconds; None is since the start


def show_window(window_s: float | None) -> str:
    """`last 5 s`, `last 5 min`, `since start`."""
    if window_s is None:
        return "since start"
    return f"last {window_s:g} s" if window_s < 60 else f"last {window_s / 60:g} min"


def show_time(time_ns: float) -> str:
    """A sum of time in at most seven signs: `431ms`, `12.3s`, `3h07m`."""
    if time_ns < 1e9:
        return f"{time_ns / 1e6:.0f}ms"
    if time_ns < 100e9:
        return f"{time_ns / 1e9:.1f}s"
    minutes = int(time_ns / 60e9)
    if minutes < 60:
        return f"{minutes}m{int(time_ns / 1e9) % 60:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def show_pct(part: float, whole: float) -> str:
    """A share, to a tenth of a percent; nothing of nothing is a dash."""
    return f"{100 * part / whole:.1f}" if whole else MISSING


def show_bytes(count: float) -> str:
    """`45M`, `1.5G`."""
    for unit in "KMG":
        count /= 1024
        if count < 1000 or unit == "G":
            break
    return f"{count:.1f}{unit}" if count < 10 else f"{count:.0f}{unit}"


def show_where(unit: Unit) -> str:
    """Where a unit is."""
    return f"{unit.file}:{unit.line}" if unit.file else ""


def show_bar(part: float, whole: float, width: int) -> str:
    """A share as a bar, to an eighth of a cell."""
    eighths = round(8 * width * part / whole) if whole else 0
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def clean(text: str) -> str:
    """A line break or an escape sequence in a name must not draw on the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
