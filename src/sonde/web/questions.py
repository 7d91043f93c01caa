"""The questions that the page asks, by name: one function answers each, live or for a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sonde.errors import ConfigError
from sonde.web import facts, series
from sonde.web.answer import PageAnswer
from sonde.web.handover import read_export
from sonde.web.opened import Opened
from sonde.web.profiles import read_profiles
from sonde.web.verdict import read_advice, read_comparison

# Widths of pieces in seconds: people read them, and each divides many of those that follow.
WIDTHS_S = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    21600,
    86400,
)
MOST_PIECES = 600
Asked = Mapping[str, str]  # the parameters of a question


def pick_width(duration_ns: int, most: int = MOST_PIECES) -> int:
    """Return the width of pieces for a time: the least that makes no more than `most`."""
    for width_s in WIDTHS_S:
        if duration_ns / (width_s * 1e9) <= most:
            return round(width_s * 1e9)
    return round(WIDTHS_S[-1] * 1e9)


def list_widths(duration_ns: int, most: int = MOST_PIECES) -> list[int]:
    """Return widths to try: from the one for `most` pieces to that for a few."""
    least = pick_width(duration_ns, most)
    longer = (round(width_s * 1e9) for width_s in WIDTHS_S)
    return [width for width in longer if least <= width <= max(least, duration_ns / 20)]


def list_longer(width_ns: int, duration_ns: int) -> list[int]:
    """Return the widths beyond one, up to the first that makes a time a single piece."""
    longer = [width for width_s in WIDTHS_S if (width := round(width_s * 1e9)) > width_ns]
    whole = sum(width < duration_ns for width in longer)
    return longer[: whole + 1]


def read_number(asked: Asked, name: str, default: int) -> int:
    """Return a parameter that is a number of nanoseconds."""
    text = asked.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not -1e18 < number < 1e18:
        raise ConfigError(f"{name}={text!r} is not a number of nanoseconds")
    return round(number)


def _read_pieces(opened: Opened, asked: Asked) -> series.Pieces:
    since = read_number(asked, "from", 0)
    until = read_number(asked, "to", 0) or opened.find_end()
    width = read_number(asked, "width", 0) or pick_width(until - since)
    if until <= since or width < 10**6 or (until - since) / width > 20_000:
        raise ConfigError("from, to and width do not make between 1 and 20,000 pieces")
    return series.Pieces(opened.find_window(since, until), opened.base_ns, width)


def _ask_about(opened: Opened, _asked: Asked) -> PageAnswer:
    until = opened.find_end()
    data = {
        "target": opened.target, "base_ms": opened.base_ns / 1e6, "base_ns": str(opened.base_ns),
        "until": until, "live": opened.is_live,
        "processes": facts.describe_sessions(opened.sessions, opened.base_ns),
    }  # fmt: skip
    return PageAnswer(data, ["SELECT * FROM sonde.session"])


def _ask_stacks(opened: Opened, asked: Asked) -> PageAnswer:
    pieces = _read_pieces(opened, asked)
    known = [int(word) for word in asked.get("known", "0,0,0,0,0,0,0").split(",")]
    if len(known) != 7:
        raise ConfigError("known has seven numbers")
    with opened.hold() as recording:
        width = pieces.width_ns
        if "width" not in asked:
            most = read_number(asked, "most", MOST_PIECES)
            widths = list_widths(pieces.window.until_ns - pieces.window.since_ns, most)
            width = opened.stacks.pick_width(recording, pieces.window, widths)
        return opened.stacks.read(recording, pieces.window, width, known)


def _over_time(read: Callable[..., PageAnswer]) -> Callable[[Opened, Asked], PageAnswer]:
    def ask(opened: Opened, asked: Asked) -> PageAnswer:
        pieces = _read_pieces(opened, asked)
        with opened.hold() as recording:
            return read(recording, pieces)

    return ask


def _ask_modules(opened: Opened, asked: Asked) -> PageAnswer:
    window = _read_pieces(opened, asked).window
    with opened.hold() as recording:
        return facts.read_modules(recording, window)


def _ask_cost(opened: Opened, _asked: Asked) -> PageAnswer:
    with opened.hold() as recording:
        return facts.read_cost(recording)


def _ask_advice(opened: Opened, asked: Asked) -> PageAnswer:
    window = opened.window
    if "from" in asked:
        window = opened.find_window(read_number(asked, "from", 0), read_number(asked, "to", 0))
    return read_advice(opened.sessions, window)


Questions = Mapping[str, Callable[[Opened, Asked], PageAnswer]]
QUESTIONS: Questions = {
    "about": _ask_about,
    "stacks": _ask_stacks,
    "steps": _over_time(series.read_steps),
    "machine": _over_time(series.read_machine),
    "marks": _over_time(series.read_marks),
    "events": _over_time(series.read_events),
    "modules": _ask_modules,
    "cost": _ask_cost,
    "profiles": lambda opened, _asked: read_profiles(opened),
    "advice": _ask_advice,
    "compare": lambda opened, asked: read_comparison(opened.target, asked),
    "export": lambda opened, asked: read_export(opened.target, asked),
    "now": lambda opened, _asked: facts.read_now(opened.sessions),
    "tables": lambda opened, _asked: facts.read_tables(opened.recording),
    "query": lambda opened, asked: facts.run_query(opened.recording, asked.get("sql", "")),
}
