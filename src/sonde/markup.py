"""Values as small pieces of HTML, for notebooks: text is escaped, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from sonde.words import MISSING

_BAR = "display:inline-block;height:.7em;background:#d9730d;border-radius:2px"
_COLOURS = {"critical": "#b3261e", "warning": "#8a5300", "info": "#0b62c4"}
_LONGEST = 300  # characters of a cell


class PctBar:
    """A number of percent that is drawn as a bar as well."""

    def __init__(self, percent: float) -> None:
        self.percent = percent


class TreeName:
    """A name in a tree, so many levels deep."""

    def __init__(self, name: str, depth: int) -> None:
        self.name, self.depth = name, depth


def show_box(title: str, lines: Iterable[str], *tables: str, severity: str = "") -> str:
    """Return a title, lines of text below it, and tables that are HTML already."""
    colour = f";color:{_COLOURS[severity]}" if severity in _COLOURS else ""
    text = "".join(f"<div>{_show(line)}</div>" for line in lines)
    head = f'<div style="font-weight:600{colour}">{_show(title)}</div>'
    return f'<div style="margin:.3em 0">{head}{text}{"".join(tables)}</div>'


def show_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as a table; numbers are on the right, and so are their names."""
    shown = list(rows)
    sides = [*map(_find_side, shown[0])] if shown else ["left"] * len(names)
    head = "".join(
        f'<th style="text-align:{side}">{_show(name)}</th>'
        for name, side in zip(names, sides, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_show_cell, row))}</tr>" for row in shown)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _show_cell(value: object) -> str:
    if isinstance(value, PctBar):
        bar = (
            f'<span style="{_BAR};width:{max(0.0, min(100.0, value.percent)) * 0.6:.0f}px"></span>'
        )
        return f'<td style="text-align:left;white-space:nowrap">{bar} {value.percent:.1f} %</td>'
    if isinstance(value, TreeName):
        deep = f"text-align:left;padding-left:{0.5 + 1.2 * value.depth:.1f}em"
        return f'<td style="{deep}">{_show(value.name)}</td>'
    return f'<td style="text-align:{_find_side(value)}">{_show(value)}</td>'


def _find_side(value: object) -> str:
    return "right" if isinstance(value, (int, float)) else "left"


def _show(value: object) -> str:
    if value is None:
        return MISSING
    text = f"{value:,}" if isinstance(value, int) else str(value)
    # What cannot be printed is written out; a text that runs backwards stays in its cell.
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return f"<bdi>{escape(cut)}</bdi>"
