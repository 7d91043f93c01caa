"""Stacks of many ranks merged into one tree, the places with the fewest ranks first; and who is
behind in which collective.

Everything here is made from rows (see live_processes.py), so it does not matter on how many
machines the ranks run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sonde.analysis.code_names import (
    MINE,
    WRAPPERS,
    count_start,
    find_owner,
    is_child_start,
    is_ours,
    name_call,
    shorten_file,
)

Row = dict[str, Any]
Frame = tuple[str, str, int]  # function, file, line
_LOST: tuple[Frame, ...] = (("?", "", 0),)


class RankThread(NamedTuple):
    """A process, and one of its threads, at a place of the tree."""

    process: Row
    thread: Row


class TreeNode:
    """Frames that the same ranks have in common, the outermost first, and what comes below."""

    def __init__(self, frames: list[Frame], members: list[RankThread]) -> None:
        self.frames, self.members = frames, members
        self.children: list[TreeNode] = []  # those with the fewest members first
        self.is_end = False  # some of the members are here and no deeper

    def walk(self) -> Iterator[TreeNode]:
        """Yield this node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class SharedPlace(NamedTuple):
    """Ranks that are at the same stack."""

    frames: tuple[Frame, ...]  # the innermost first
    members: list[RankThread]


def split_threads(rows: Iterable[Row]) -> tuple[list[RankThread], list[RankThread]]:
    """Return the main threads of the ranks, and all other threads, among them those of the
    processes that a rank started. In a job without ranks, such as a server with its workers, every
    process counts as one."""
    rows = list(rows)
    ranked = any(row["rank"] is not None for row in rows)
    mains, others = list[RankThread](), list[RankThread]()
    for row in rows:
        for thread in row["threads"]:
            is_main = thread["thread"] == row["pid"] and not (ranked and row["is_child"])
            (mains if is_main else others).append(RankThread(row, thread))
    return mains, others


def group_places(members: Iterable[RankThread]) -> list[SharedPlace]:
    """Return the different stacks, those of the fewest processes first."""
    groups: dict[str, list[RankThread]] = {}
    for member in members:
        groups.setdefault(member.thread["stack"], []).append(member)
    found = [SharedPlace(_read_stack(stack), each) for stack, each in groups.items()]
    return sorted(found, key=lambda place: _order(place.members))


def _read_stack(text: str) -> tuple[Frame, ...]:
    """Return the frames of a stack; a row from another machine may contain anything."""
    try:
        read = ((str(func), str(file), int(line)) for func, file, line in json.loads(text))
        frames = tuple(frame for frame in read if not is_ours(frame[1]))
    except (ValueError, TypeError, RecursionError):
        return _LOST
    return frames or _LOST


def _order(members: Sequence[RankThread]) -> tuple[int, int, str, int]:
    first = min(members, key=_name_order)
    return (len({_key(member) for member in members}), *_name_order(first))


def _name_order(member: RankThread) -> tuple[int, str, int]:
    process = member.process
    return (2**63 if process["rank"] is None else process["rank"], process["host"], process["pid"])


def _key(member: RankThread) -> tuple[str, int]:
    return member.process["host"], member.process["pid"]


def merge_stacks(places: Sequence[SharedPlace]) -> TreeNode:
    """Merge stacks into one tree; its root has no frames unless all stacks begin alike."""
    return _merge([(_skip_start(place.frames[::-1]), place.members) for place in places], 0)


def _skip_start(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a stack, root first, without what only runs the program."""
    children = [at for at, (func, file, _line) in enumerate(frames) if is_child_start(func, file)]
    frames = frames[children[-1] :] if children else frames
    return frames[count_start([file for _func, file, _line in frames]) :]


def _merge(stacks: Sequence[tuple[tuple[Frame, ...], list[RankThread]]], depth: int) -> TreeNode:
    frames = list[Frame]()
    while True:
        here = {stack[depth] if len(stack) > depth else None for stack, _members in stacks}
        if len(here) != 1 or None in here:
            break
        frames += [frame for frame in here if frame is not None]
        depth += 1
    node = TreeNode(frames, [member for _stack, members in stacks for member in members])
    branches: dict[Frame, list[tuple[tuple[Frame, ...], list[RankThread]]]] = {}
    for stack, members in stacks:
        if len(stack) == depth:
            node.is_end = True
        else:
            branches.setdefault(stack[depth], []).append((stack, members))
    node.children = [_merge(each, depth) for each in branches.values()]
    node.children.sort(key=lambda child: _order(child.members))
    return node


def name_place(frames: Sequence[Frame], folder: str | None) -> str:
    """Return what a stack, the innermost frame first, is at: `step (trainer.py:212) in
    torch.all_reduce`, the program's own function with its line, and what that has called."""
    frames = _skip_start(tuple(frames[::-1]))[::-1]
    own = next((at for at, frame in enumerate(frames) if find_owner(frame[1]) == MINE), 0)
    func, file, line = frames[own]
    place = f"{func} ({shorten_file(file, folder)}:{line})" if file else func
    called = [frame for frame in frames[:own] if frame[0].rpartition(".")[2] not in WRAPPERS]
    return f"{place} in {name_call(*called[-1][:2])}" if called else place


# ---- who is behind -------------------------------------------------------------------------------


class Lag(NamedTuple):
    """How far the ranks of one process group have come."""

    group: str
    op: str  # what the ranks that wait are in
    pending: int | None  # its number; None if nobody has waited for long
    lasted_ns: int  # how long at least they have waited
    waiting: list[Row]  # processes that are in it
    behind: list[tuple[Row, int]]  # processes that are not, and how many they have finished
    absent: list[int]  # ranks of the group of which there is no row at all
    finished: tuple[int, int]  # the least and the greatest number of finished collectives


def find_lags(rows: Iterable[Row]) -> list[Lag]:
    """Return the state of each process group, those in which somebody waits first."""
    ranks = [row for row in rows if not row["is_child"]]
    calls = [(row, one) for row in ranks for one in row["collectives"]]
    listed: dict[str, set[str]] = {}
    for _row, one in calls:
        if one["group_ranks"]:
            listed.setdefault(one["group_name"] or "", set()).add(one["group_ranks"])
    groups: dict[tuple[str, str], list[tuple[Row, Row]]] = {}
    for row, one in calls:
        name, members = one["group_name"] or "", one["group_ranks"] or ""
        # A rank that waits since the group was made could not yet tell who is in it; others can.
        if not members and len(listed.get(name, ())) == 1:
            (members,) = listed[name]
        groups.setdefault((name, members), []).append((row, one))
    lags = [_judge(members, ranks, *key) for key, members in groups.items()]
    return sorted(lags, key=lambda lag: (not lag.behind, lag.pending is None, lag.group))


def _judge(members: list[tuple[Row, Row]], ranks: list[Row], name: str, listed: str) -> Lag:
    desc = members[0][1]["group_desc"]
    group = name if not desc or desc == "undefined" else f"{name} ({desc})"
    finished = [one["finished"] for _row, one in members]
    bounds = min(finished), max(finished)
    pending = max((one["pending"] for _row, one in members if one["pending"]), default=None)
    if pending is None:
        return Lag(group, members[0][1]["op"] or "", None, 0, [], [], [], bounds)
    waits = [(row, one) for row, one in members if one["pending"] == pending]
    behind = [(row, one["finished"]) for row, one in members if one["finished"] < pending - 1
              or one["entered"] < pending]  # fmt: skip
    expected = _read_ranks(listed)
    there = {row["rank"] for row, _one in members}
    # A rank of the group that has no collective of it yet is behind as well.
    behind += [(row, 0) for row in ranks if row["rank"] in expected - there]
    absent = sorted(expected - {row["rank"] for row in ranks})
    lasted = min(one["lasted_ns"] or 0 for _row, one in waits)
    op = waits[0][1]["op"] or "a collective"
    return Lag(group, op, pending, lasted, [row for row, _one in waits], behind, absent, bounds)


def _read_ranks(text: str) -> set[int]:
    return {int(word) for word in text.split(",") if word.strip().isdecimal() and len(word) < 10}
