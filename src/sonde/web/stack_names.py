"""The names of stacks as the page draws them: as trees that only grow, each place named once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from sonde.analysis.code_fold import Step, fold, keep_all
from sonde.analysis.code_names import LIBRARY, MINE, SONDE, shorten_file
from sonde.analysis.hot_call import cut_tail, find_hot_call
from sonde.analysis.profile import Profile, ProfileFrame
from sonde.analysis.rest import is_at_rest
from sonde.analysis.source_lines import read_source
from sonde.analysis.wait_words import describe_wait
from sonde.analysis.work_kinds import find_kind
from sonde.store.recording import Recording
from sonde.words import shorten_func

NODES_SQL = """\
SELECT stack, any_value(parent), any_value(func), any_value(file), any_value(lineno),
    any_value(first_line)
FROM python.stack GROUP BY stack"""
_LOST = (ProfileFrame("<lost>", "", 0, 0),)
Node = tuple[int | None, ProfileFrame]


class Numbered(dict[Any, int]):
    """Numbers for values, in the order in which they came."""

    def find(self, value: Any) -> int:
        """Return the number of a value; a new one if it is new."""
        return self.setdefault(value, len(self))


class StackNames:
    """What is known of the stacks that were asked for so far. A number once given stays: the page
    asks for what is new."""

    def __init__(self, profile: Profile) -> None:
        self._own = profile.make_owner()
        first = profile.recording.sessions[0]
        self._folder = first.meta.cwd
        # A source file is quoted where it is the one that ran: on this machine, unchanged since.
        self._before_ns = first.start_wall_ns if first.host == os.uname().nodename else 0
        self._nodes: dict[int, Node] = {}
        self._has_mine = False
        # Goes up whenever all numbers become invalid, also from one server to the next.
        self.version = time.monotonic_ns() // 1000
        self._forget()

    def _forget(self) -> None:
        self.version += 1
        self._stacks: dict[int, int] = {}
        self._files, self._places, self._tree = Numbered(), Numbered(), Numbered()
        self._hot, self._waits = Numbered(), Numbered()
        # By stack: its node with every frame, its node folded, its line, what it waits for, and
        # whether it is at rest: 1 in the main thread, 2 in another.
        self._rows: list[tuple[int, int, int, int, int]] = []

    def number(self, recording: Recording, stacks: Iterable[int]) -> list[int]:
        """Return the numbers of stacks; new ones are read from the recording."""
        wanted = list(stacks)
        if any(stack not in self._stacks for stack in wanted):
            self._read(recording)
        return [self._number(stack) for stack in wanted]

    def _read(self, recording: Recording) -> None:
        rows = recording.query(NODES_SQL)
        for stack, parent, *parts in zip(*(c.to_pylist() for c in rows.columns), strict=True):
            if stack not in self._nodes:
                func, file, line, first = parts
                frame = ProfileFrame(func or "?", file or "?", line or 0, first or 0)
                self._nodes[stack] = parent, frame
        has_mine = any(self._own(frame.file) == MINE for _, frame in self._nodes.values())
        if has_mine != self._has_mine:
            # What is told of a program depends on whether it has code of the user's own.
            self._has_mine = has_mine
            self._forget()

    def _number(self, stack: int) -> int:
        known = self._stacks.get(stack)
        if known is None:
            known = self._stacks[stack] = len(self._rows)
            self._rows.append(self._describe(self._find_frames(stack)))
        return known

    def _find_frames(self, stack: int) -> Sequence[ProfileFrame]:
        """Return the frames of a stack, root first."""
        found: list[ProfileFrame] = []
        at: int | None = stack
        while at is not None and at in self._nodes:
            at, frame = self._nodes[at]
            found.append(frame)
        return found[::-1] or _LOST

    def _describe(self, frames: Sequence[ProfileFrame]) -> tuple[int, int, int, int, int]:
        own = self._own
        folded = fold(frames, own, by_package=not self._has_mine)
        rest = [
            is_at_rest(frames, own, is_main=is_main, has_mine=self._has_mine)
            for is_main in (True, False)
        ]
        wait = describe_wait([(frame.func, frame.file) for frame in reversed(frames)])
        return (
            self._grow(keep_all(frames, own) or folded), self._grow(folded),
            self._find_hot(folded, frames), self._waits.find(wait), rest[0] + 2 * rest[1],
        )  # fmt: skip

    def _grow(self, steps: Sequence[Step]) -> int:
        """Return the node of a path; the lines of one function are one node."""
        node = -1
        for step in steps:
            line = step.first_line or step.line
            file = self._files.find(step.file)
            place = self._places.find((step.name, file, line, step.owner))
            node = self._tree.find((node, place))
        return node

    def _find_hot(self, steps: Sequence[Step], frames: Sequence[ProfileFrame]) -> int:
        """Return the number of the line of the user's own that a stack is at, see HotPlace; of one
        without such code that of the innermost function of a library that tells something."""
        last = steps[-1]
        if last.owner == LIBRARY and not last.file and not last.name.startswith("import "):
            found = find_hot_call([cut_tail(frames, self._own)], [1], self._own)
            func, path = found[:2] if found else ("", "")
            for one in frames:
                if (shorten_func(one.func), one.file) == (func, path):
                    return self._hot.find((func, self._files.find(path), one.first_line, "", ""))
        mine = [step.name for step in steps if step.owner == MINE]
        call = "" if last.owner == MINE else last.name
        func = mine[-1] if mine else ""
        file = self._files.find(last.file)
        return self._hot.find((func, file, last.line, call, find_kind(call)))

    def list_new(self, known: Sequence[int]) -> dict[str, Any]:
        """Return what came after the counts in `known`: stacks, nodes, places, lines, waits,
        files."""
        stacks, nodes, places, hot, waits, files = known
        return {
            "stacks": _turn(self._rows[stacks:], 5),
            "nodes": _turn(_skip(self._tree, nodes), 2),
            "places": _turn(_skip(self._places, places), 4),
            "hot": _turn([self._quote(one) for one in _skip(self._hot, hot)], 6),
            "waits": _skip(self._waits, waits),
            "files": _turn([self._describe_file(file) for file in _skip(self._files, files)], 3),
        }

    def _quote(self, hot: Any) -> tuple[Any, ...]:
        file = list(self._files)[hot[1]]
        return *hot, read_source(file, hot[2], self._before_ns) if self._before_ns else ""

    def _describe_file(self, file: Any) -> tuple[str, str, str]:
        owner = self._own(file) if file else SONDE
        return file, shorten_file(file, self._folder), owner


def _skip(numbered: Numbered, count: int) -> list[Any]:
    return list(numbered)[count:]


def _turn(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return rows as columns."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
