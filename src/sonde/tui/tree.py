"""The tree of all stacks as shares.py needs it: who called whom, by function and by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sonde.analysis.code_names import IMPORTER, MINE, find_owner, is_ours, name_module, shorten_file
from sonde.session import stack_table


class Unit(NamedTuple):
    """What a share refers to: a function with its first line, or one line of a function."""

    func: str
    file: str
    line: int

    def show_place(self, folder: str | None) -> str:
        """Return the file, from `folder` on, and the line; empty if the file is not known."""
        return f"{shorten_file(self.file, folder)}:{self.line}" if self.file else ""


class Units:
    """The unit of every node, and whether the node is the outermost of its unit."""

    def __init__(self) -> None:
        self.names: list[Unit] = []
        self.of: list[int] = []
        self.outermost: list[bool] = []  # a recursive function counts once in a stack
        self._numbers: dict[Unit, int] = {}

    def add(self, name: Unit, parent: int, parents: Sequence[int]) -> None:
        """Add a node under `parent`."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        at = parent
        while at >= 0 and self.of[at] != number:
            at = parents[at]
        self.of.append(number)
        self.outermost.append(at < 0)

    def find(self, name: Unit) -> int | None:
        """Return the number of a unit, or None."""
        return self._numbers.get(name)


class StackTree:
    """Nodes, callers before their callees. Place 0 stands for stacks that cannot be read."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.parents: list[int] = []
        self.lines: list[int] = []
        self.functions, self.by_line = Units(), Units()
        # The same as they are summed up: all that happens in an import is that import, and what our
        # own frames take is their caller's.
        self.folded, self.folded_lines = Units(), Units()
        self._imports: dict[int, Unit] = {}  # by place
        self._ours: dict[int, bool] = {}  # by place: whether we import something there
        self.add(0, -1, "?", "?", 0, 0)
        self.places.clear()

    def __len__(self) -> int:
        return len(self.parents)

    def add(self, stack: int, parent: int, func: str, file: str, line: int, first: int) -> None:
        """Add a node under the one at `parent`; -1 means no parent."""
        place = self.places[stack] = len(self.parents)
        self.functions.add(Unit(func, file, first), parent, self.parents)
        self.by_line.add(Unit(func, file, line), parent, self.parents)
        ours = self._find_ours(parent, file)
        if ours is not None:
            self._ours[place] = ours
        imported = None if ours else _find_import(self._imports.get(parent), func, file)
        if imported is not None:
            self._imports[place] = imported
        for units, at in ((self.folded, first), (self.folded_lines, line)):
            unit = imported or Unit(func, file, at)
            if imported is None and ours is not None:
                unit = units.names[units.of[parent]] if parent >= 0 else OURS
            units.add(unit, parent, self.parents)
        self.parents.append(parent)
        self.lines.append(line)

    def _find_ours(self, parent: int, file: str) -> bool | None:
        """Tell whether a frame is part of what a frame of ours imports; False of our own code, None
        of what is the program's."""
        if is_ours(file):
            return False
        around = self._ours.get(parent)
        is_import = around is not None and (around or file.startswith(IMPORTER))
        return True if is_import and find_owner(file) != MINE else None

    def grow(self, nodes: stack_table.Nodes) -> bool:
        """Add new nodes; return False if the known nodes are not the first ones."""
        known = len(self) - 1
        if nodes.damaged or known > len(nodes):
            return False
        for at in range(known, len(nodes)):
            frame, parent = nodes.frame(at), nodes.find_parent(at)
            names = frame.func, frame.file, frame.line, frame.first_line
            self.add(nodes.hashes[at], parent + 1 if 0 <= parent < at else -1, *names)
        return True

    def walk(self, place: int) -> Iterable[int]:
        """Yield the places of a stack, the innermost first."""
        while place >= 0:
            yield place
            place = self.parents[place]


_IMPORT = Unit("(all imports)", "", 0)  # their sum; its own time is what Python takes to find them
OURS = Unit("(sonde)", "", 0)  # our own frames that nothing of the program has called


def _find_import(around: Unit | None, func: str, file: str) -> Unit | None:
    """Return the import that a frame is part of, if its caller is part of `around`. The user's own
    modules are not folded: what they do at import is code like any other."""
    if around is not None and around != _IMPORT:
        return around
    if file.startswith(IMPORTER):
        return _IMPORT
    if around is None or find_owner(file) == MINE:
        return None
    return Unit(f"import {name_module(file)}", file, 1) if func == "<module>" else None


def make_tree(rows: Sequence[dict[str, Any]]) -> StackTree:
    """Return the tree of python.stack's rows, which may come in any order."""
    tree, by_stack = StackTree(), {row["stack"]: row for row in rows}
    for row in rows:
        path: list[dict[str, Any]] = []
        at: dict[str, Any] | None = row
        # A damaged parent may lead into a circle; no real stack is that deep.
        while at is not None and at["stack"] not in tree.places and len(path) <= len(rows):
            path.append(at)
            at = by_stack.get(at["parent"])
        for node in reversed(path):
            parent = tree.places.get(node["parent"], -1)
            names = node["func"], node["file"], node["lineno"], node["first_line"]
            if node["stack"] not in tree.places:
                tree.add(node["stack"], parent, *names)
    return tree
