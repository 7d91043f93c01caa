"""How the call tree of the user's own code is drawn."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from sonde import environ
from sonde.analysis.code_names import MINE, shorten_file
from sonde.analysis.code_tree import CodeNode, CodeTree
from sonde.analysis.source_lines import read_source
from sonde.words import clean

TIMES = "\N{MULTIPLICATION SIGN}"  # before the number of threads that a line stands for
_LAST_PART = re.compile(r"\.\w+$")
_GUIDES = "│├└ "
_LEAST = 12  # columns of a name or a place that still tell something
_NARROWEST = 26  # columns of names with the lines before them


def draw_nodes(
    tree: CodeTree, nodes: Sequence[tuple[int, CodeNode]],
    show_numbers: Callable[[CodeNode, CodeTree], str], name: Callable[[CodeNode], str],
    file: IO[str], tell: Callable[[CodeNode], str] = lambda _: "",
) -> None:  # fmt: skip
    """Draw nodes, callers first: numbers, name, place and source line of each. What `tell` adds to
    a name in brackets is left out where there is no room for it."""
    coloured = file.isatty() and environ.uses_colour()
    width = shutil.get_terminal_size().columns if file.isatty() else 160
    folder = tree.profile.folder
    places = [_show_place(node, folder) for _, node in nodes]
    numbers = [show_numbers(node, tree) for _, node in nodes]
    left_over = width - len(numbers[0]) - 4
    own = max(len(place) for (_, node), place in zip(nodes, places, strict=True) if _is_own(node))
    least = min(max(own, min(_LEAST, max(map(len, places)))), left_over - _NARROWEST)
    widest = left_over - least
    guides = _draw_guides(nodes)
    if max(map(len, guides)) > widest - _LEAST:
        guides = _draw_guides(nodes, is_deep=True)
    labels = [
        _add_note(guide + name(node), tell(node), widest)
        for guide, (_, node) in zip(guides, nodes, strict=True)
    ]  # fmt: skip
    room = min(max(map(len, labels)), widest)
    widest = left_over - room
    places = [place and _cut_left(place, widest).ljust(min(own, widest)) for place in places]
    labels = [_cut_name(label, room) for label in labels]
    above: list[str] = []  # the place of each caller
    for (depth, node), amount, label, place in zip(nodes, numbers, labels, places, strict=True):
        left = f"{amount}  {label:<{room}}  {place}"
        is_known = not place or not _is_own(node) or (depth > 0 and above[depth - 1] == place)
        source = (
            "" if is_known else cut_text(find_source(node, tree), width - len(left) - 2, _LEAST)
        )
        above[depth:] = [place]
        if coloured:
            left = f"{amount}  {_paint(node, label)}{' ' * (room - len(label))}  {place}"
            source = f"\x1b[2m{source}\x1b[0m" if source else ""
        file.write(f"{left}  {source}".rstrip() + "\n")


def _draw_guides(nodes: Sequence[tuple[int, CodeNode]], is_deep: bool = False) -> list[str]:
    """Return the lines that lead from a caller to what it calls. In a deep tree, the only one that
    the last of its callers calls stands right below it: where `└` follows `└`, it is called."""
    marks: list[str] = []
    followed = set[int]()  # depths at which another node follows
    for depth, _ in reversed(nodes):
        marks.append("├ " if depth in followed else "└ ")
        followed = {level for level in followed if level < depth} | {depth}
    marks.reverse()
    guides: list[str] = []
    lines: list[str] = []  # the columns that each caller leaves before what it calls
    for at, (depth, _) in enumerate(nodes):
        guides.append("".join(lines[1:depth]) + marks[at] if depth else "")
        calls_one = len(list(_list_called(nodes, at))) == 1
        skips = is_deep and calls_one and marks[at] == "└ "
        lines[depth:] = ["" if skips else "│ " if marks[at] == "├ " else "  "]
    return guides


def _list_called(nodes: Sequence[tuple[int, CodeNode]], at: int) -> Iterator[int]:
    """Yield where the nodes stand that a node calls itself."""
    depth = nodes[at][0]
    for below in range(at + 1, len(nodes)):
        if nodes[below][0] <= depth:
            return
        if nodes[below][0] == depth + 1:
            yield below


def _show_place(node: CodeNode, folder: str | None) -> str:
    if not node.step.file or not node.line:
        return ""
    return clean(f"{shorten_file(node.step.file, folder)}:{node.line}")


def find_source(node: CodeNode, tree: CodeTree) -> str:
    """Return the text of a node's line; empty if its file is not here, or has changed since."""
    session = tree.profile.recording.sessions[0]
    if not node.step.file or not node.line or session.host != os.uname().nodename:
        return ""
    return clean(read_source(node.step.file, node.line, session.start_wall_ns))


def _paint(node: CodeNode, label: str) -> str:
    return f"\x1b[{1 if node.step.owner == MINE else 36}m{label}\x1b[0m"


def _is_own(node: CodeNode) -> bool:
    """Return whether a node's place is in the user's own code; a library's place may be cut."""
    return not node.step.name.startswith("… ")


def _add_note(label: str, note: str, room: int) -> str:
    """Return a name with a note, if it fits: `work (waiting for a lock)`, and then its threads."""
    if not note:
        return label
    name, times, count = label.rpartition(f" {TIMES}")
    name = name or label
    is_note = name.lstrip(_GUIDES).startswith("(")  # `(this line itself)`
    told = f"{name[:-1]}, {note})" if is_note else f"{name} ({note})"
    told += times + count if times else ""
    return told if len(told) <= room else label


def _cut_left(text: str, room: int) -> str:
    """Return a path of which the folders go first where there is no room."""
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :]


def _cut_name(label: str, room: int) -> str:
    """Return a name in this many columns; how many threads it stands for is never cut."""
    name, times, count = label.rpartition(f" {TIMES}")
    if not times or not count.isdigit():
        return _cut_middle(label, room)
    return _cut_middle(name, room - len(times + count)) + times + count


def _cut_middle(name: str, room: int) -> str:
    """Return a name whose last part, which tells most, is kept where there is room for it."""
    end = _LAST_PART.search(name)
    if len(name) <= room or end is None or len(end[0]) + _LEAST > room:
        return cut_text(name, room)
    return cut_text(name[: end.start()], room - len(end[0])) + end[0]


def cut_text(text: str, room: int, least: int = 2) -> str:
    """Return a text in this many columns; nothing if there are fewer than `least`."""
    return text if len(text) <= room else text[: room - 1] + "…" if room >= least else ""
