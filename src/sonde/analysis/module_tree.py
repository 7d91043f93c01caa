"""Modules as a call tree, with repeated blocks folded, or as a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

Key = TypeVar("Key")


@dataclass
class ModuleNode:
    """A module under its caller, or several similar ones as one; times are seconds per step."""

    label: str  # its name, without its caller's name
    type: str
    up: ModuleNode | None
    modules: list[str]
    order: float = float("inf")  # position of its first call
    own: dict[str, float] = field(default_factory=dict)  # by stage, without the modules inside
    own_of: dict[int, float] = field(default_factory=dict)  # by process, all stages
    total: dict[str, float] = field(default_factory=dict)  # with the modules inside
    total_of: dict[int, float] = field(default_factory=dict)
    calls: float = 0.0
    parameters: int | None = None
    device: float | None = None
    allocated: float | None = None
    max_allocated: float | None = None
    times: int = 1  # how many modules it stands for under one caller
    children: list[ModuleNode] = field(default_factory=list)

    @property
    def own_s(self) -> float:
        return sum(self.own.values())

    @property
    def total_s(self) -> float:
        return sum(self.total.values())

    @property
    def depth(self) -> int:
        above = 0
        node = self.up
        while node is not None:
            above, node = above + 1, node.up
        return above


def grow(rows: Sequence[dict[str, Any]]) -> list[ModuleNode]:
    """Return the tree of rows (one for each process, place and stage), callers first."""
    nodes: dict[int, ModuleNode] = {}
    ups: dict[int, int | None] = {}
    for row in rows:
        ups[row["node"]] = row["up"]
        if row["node"] not in nodes:
            nodes[row["node"]] = ModuleNode(row["module"], row["type"] or "", None, [row["module"]])
    for number, node in nodes.items():
        above = ups[number]
        node.up = None if above is None else nodes.get(above)
        if node.up is not None:
            node.label = _shorten(node.modules[0], node.up.modules[0])
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["node"], row["stage"]), []).append(row)
    for (number, stage), group in groups.items():
        _fill(nodes[number], stage, group)
    return _finish(list(nodes.values()))


def _shorten(name: str, above: str) -> str:
    """Return a module's name relative to its caller's.

    The name is not split at dots: a part may contain a dot, and a list that nobody calls (`blocks`)
    appears only in its members' names."""
    return name[len(above) + 1 :] if name.startswith(above + ".") else name


def _fill(node: ModuleNode, stage: str, rows: Sequence[dict[str, Any]]) -> None:
    """Set the numbers of one stage: of several processes, the median."""
    node.own[stage] = median(row["own"] for row in rows)
    for row in rows:
        node.own_of[row["part"]] = node.own_of.get(row["part"], 0.0) + row["own"]
    if stage in ("forward", "step"):
        node.calls = median(row["calls"] for row in rows)
    node.order = min(node.order, *(row["first"] for row in rows))
    device = [row["device"] for row in rows if row["device"] is not None]
    if device:
        node.device = (node.device or 0.0) + median(device)
    for name in ("allocated", "max_allocated", "parameters"):
        _raise(node, name, [row[name] for row in rows])


def _raise(node: ModuleNode, name: str, values: Iterable[float | None]) -> None:
    known = [value for value in (getattr(node, name), *values) if value is not None]
    setattr(node, name, max(known, default=None))


def _finish(nodes: list[ModuleNode]) -> list[ModuleNode]:
    """Order nodes with callers first, and compute totals from the innermost nodes."""
    for node in nodes:
        if node.up is not None:
            node.up.children.append(node)
    ordered = walk([node for node in nodes if node.up is None], _by_order)
    for node in reversed(ordered):
        # Totals come from own times, so that children and self add up to the parent even where a
        # child ran in a stage that its parent did not: a checkpointed block is recomputed, its
        # model is not.
        _add(node.total, node.own)
        _add(node.total_of, node.own_of)
        if node.up is not None:
            _add(node.up.total, node.total)
            _add(node.up.total_of, node.total_of)
    return ordered


def _by_order(node: ModuleNode) -> tuple[bool, float, str]:
    return "step" in node.own, node.order, node.label  # optimizers come last


def walk(roots: Iterable[ModuleNode], key: Callable[[ModuleNode], Any]) -> list[ModuleNode]:
    """Return all nodes, callers first, siblings sorted. Without recursion: trees may be deep."""
    found: list[ModuleNode] = []
    waiting = sorted(roots, key=key, reverse=True)
    while waiting:
        node = waiting.pop()
        found.append(node)
        node.children.sort(key=key)
        waiting += reversed(node.children)
    return found


def _add(sums: dict[Key, float], more: dict[Key, float]) -> None:
    for key, value in more.items():
        sums[key] = sums.get(key, 0.0) + value


def fold(nodes: Sequence[ModuleNode]) -> list[ModuleNode]:
    """Return the tree with repeated blocks as one node: `blocks.*`. Times are sums."""
    patterns = _find_patterns(nodes)
    made: dict[tuple[int, str, str], ModuleNode] = {}
    home: dict[int, ModuleNode] = {}
    for node in nodes:
        up = None if node.up is None else home[id(node.up)]
        label = patterns.get(id(node), node.label)
        key = (id(up), label, node.type)
        one = made.get(key)
        if one is None:
            one = made[key] = ModuleNode(label, node.type, up, [])
        home[id(node)] = one
        _merge(one, node)
    for one in made.values():
        one.times = round(len(one.modules) / (len(one.up.modules) if one.up else 1)) or 1
    return _finish(list(made.values()))


def _merge(into: ModuleNode, node: ModuleNode, inside: bool = False) -> None:
    # A module that is called in two places, or lies inside a counted one, has its parameters once.
    if node.parameters is not None and not inside and node.modules[0] not in into.modules:
        into.parameters = (into.parameters or 0) + node.parameters
    into.modules += node.modules
    into.order = min(into.order, node.order)
    into.calls += node.calls
    _add(into.own, node.own)
    _add(into.own_of, node.own_of)
    if node.device is not None:
        into.device = (into.device or 0.0) + node.device
    for name in ("allocated", "max_allocated"):
        _raise(into, name, [getattr(node, name)])


def _find_patterns(nodes: Sequence[ModuleNode]) -> dict[int, str]:
    """Return, by node, the common names of siblings of one type that are folded.

    Blocks are folded wherever they stand, leaves only if they are neighbours: a Sequential of
    Linear, ReLU, Linear is better shown as it is."""
    found: dict[int, str] = {}
    for above in [None, *nodes]:
        siblings = above.children if above else [node for node in nodes if node.up is None]
        groups: dict[tuple[str, str, int], list[ModuleNode]] = {}
        run, last = 0, ("", "")
        for node in siblings:
            kind = (_mask(node.label), node.type)
            run += kind != last
            last = kind
            groups.setdefault((*kind, 0 if node.children else run), []).append(node)
        for (pattern, _type, _run), group in groups.items():
            if len(group) > 1:
                found |= {id(node): pattern for node in group}
    return found


def _mask(label: str) -> str:
    """Return `blocks.*` for `blocks.3`: the last number becomes a star."""
    parts = label.split(".")
    for at in range(len(parts) - 1, -1, -1):
        if parts[at].isdecimal():
            return ".".join([*parts[:at], "*", *parts[at + 1 :]])
    return label


def flatten(nodes: Sequence[ModuleNode], by: str) -> list[ModuleNode]:
    """Return one node for each name or type; nested ones do not count time twice."""
    made: dict[str, ModuleNode] = {}
    for node in nodes:
        key = node.modules[0] if by == "name" else node.type or node.modules[0]
        one = made.setdefault(key, ModuleNode(key, node.type, None, []))
        inside = _is_inside(node, key, by)
        _merge(one, node, inside)
        if not inside:
            _add(one.total, node.total)
            _add(one.total_of, node.total_of)
    return list(made.values())


def _is_inside(node: ModuleNode, key: str, by: str) -> bool:
    above = node.up
    while above is not None:
        if key == (above.modules[0] if by == "name" else above.type or above.modules[0]):
            return True
        above = above.up
    return False
