"""A flame graph as one SVG picture, with search and zoom."""

from __future__ import annotations

from typing import IO, NamedTuple
from xml.sax.saxutils import escape

from sonde.analysis.call_tree import CallNode, grow, walk
from sonde.analysis.code_fold import tidy
from sonde.analysis.code_names import shorten_file
from sonde.analysis.profile import Place, Profile, Stack
from sonde.export.formats._asset import LEGEND, fill, pick_hue, pick_shade, read_asset
from sonde.words import clean, show_duration

SUFFIX = ".svg"
TEXT = True
IN_ORDER = False  # whether it needs the order of time
OPEN = "any browser"

_WIDTH, _ROW, _PAD, _HEAD, _FOOT = 1200, 16, 10, 44, 28
_CHAR = 6.65  # width of a letter, the same as in svg.js
_NARROWEST = 0.1  # narrower boxes cannot be seen, and are most of a large graph


class Box(NamedTuple):
    """One frame as it is drawn."""

    x: float
    width: float
    depth: int
    name: Place | str
    own_ns: int
    total_ns: int


def write(profile: Profile, file: IO[str]) -> None:
    """Draw time as width and depth as height; boxes too narrow to be seen are only counted."""
    by = profile.by
    root = grow((_path(profile, stack), stack.ns) for stack in profile.weighed)
    boxes, hidden = _lay_out(root, by)
    height = _HEAD + (max(box.depth for box in boxes) + 1) * _ROW + _FOOT
    subtitle = f"{profile.weight} time, {show_duration(root.total[by])}"
    subtitle += f"; {LEGEND}"
    if hidden:
        subtitle += f"; {hidden:,} boxes are too narrow to draw"
    head, foot = read_asset("svg.svg").split("@BOXES@")
    head = fill(
        head,
        HEIGHT=str(height),
        BOTTOM=str(height - 10),
        SUBTITLE=escape(subtitle),
        TITLE=escape(clean(profile.label)),
    )
    file.write(head)
    for box in boxes:
        file.write(_draw(box, root.total[by], profile.folder))
    file.write(fill(foot, SCRIPT=read_asset("svg.js")))


def _path(profile: Profile, stack: Stack) -> list[Place | str]:
    thread = stack.thread
    return [thread.process.label, thread.label, *tidy(profile.path(stack.frames))]


def _lay_out(root: CallNode[Place | str], by: int) -> tuple[list[Box], int]:
    """Return the boxes that can be seen, and how many cannot."""
    scale = (_WIDTH - 2 * _PAD) / max(1, root.total[by])
    boxes = [Box(_PAD, _WIDTH - 2 * _PAD, 0, "all", root.own[by], root.total[by])]
    ends = [float(_PAD)]  # by depth: where the next box begins
    hidden = 0
    for depth, name, node in walk(root, by):
        x, width = ends[depth], node.total[by] * scale
        ends[depth:] = [x + width, x]
        if width >= _NARROWEST:
            boxes.append(Box(x, width, depth + 1, name, node.own[by], node.total[by]))
        elif node.total[by]:
            hidden += 1
    return boxes, hidden


def _draw(box: Box, total_ns: int, folder: str | None) -> str:
    y = _HEAD + box.depth * _ROW  # the root on top: what matters is on the first screen
    name = clean(box.name.label if isinstance(box.name, Place) else str(box.name))
    share = 100 * box.total_ns / max(1, total_ns)
    total, own = show_duration(box.total_ns), show_duration(box.own_ns)
    title = f"{name}\n{total}, {share:.2f} %; itself {own}"
    short = _shorten(box.name, folder, box.width) if isinstance(box.name, Place) else name
    place = f'x="{box.x:.2f}" width="{box.width:.2f}"'
    return (
        f'<g class="f"><title>{escape(title)}</title>'
        f'<rect {place} y="{y}" height="{_ROW - 1}" fill="{_colour(box.name)}"/>'
        f'<text x="{box.x + 3:.2f}" y="{y + 11.5}">{escape(_fit(short, box.width))}</text></g>\n'
    )


def _shorten(place: Place, folder: str | None, width: float) -> str:
    """Return the name of a function, and where it is if there is room for all of that."""
    whole = clean(f"{place.func}  {shorten_file(place.file, folder)}:{place.line}")
    return whole if place.file and len(whole) <= (width - 6) / _CHAR else clean(place.func)


def _fit(text: str, width: float) -> str:
    room = int((width - 6) / _CHAR)
    if room < 3:
        return ""
    return text if len(text) <= room else text[: room - 1] + "…"


def _colour(name: Place | str) -> str:
    if not isinstance(name, Place):
        return "#d8dce3"
    return f"hsl({pick_hue(name.file)},58%,{74 + pick_shade(name.func)}%)"
