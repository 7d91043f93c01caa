"""The stacks of many ranks as people read them: who is behind, who is where, and one tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from sonde.analysis.code_names import MANY_CALLERS, MINE, find_owner, shorten_file
from sonde.analysis.live_processes import list_missing
from sonde.analysis.rank_tree import (
    Frame,
    Lag,
    RankThread,
    SharedPlace,
    TreeNode,
    find_lags,
    group_places,
    merge_stacks,
    name_place,
    split_threads,
)
from sonde.analysis.wait_words import describe_wait
from sonde.cli._stack_text import Painter, name_packages
from sonde.words import clean, count_things, show_duration, show_ranges

Row = dict[str, Any]
_MOST = 20  # places, and branches of the tree
_MOST_OTHERS = 10
_MOST_NAMED = 4  # processes that are named one by one
_INNERMOST = 2  # frames of libraries that are shown where a stack ends
_SHORT_NS = 10**9  # a wait that is shorter is no news


class RankText:
    """Draws what the processes of a job are doing."""

    def __init__(
        self, paint: Painter, rows: Sequence[Row], width: int = 10**6, *, all_frames: bool = True
    ) -> None:
        self._paint, self._rows, self._width = paint, rows, width
        self._all_frames = all_frames
        self._folder = next((row["cwd"] for row in rows if row["cwd"]), None)
        self._hosts = {row["host"] for row in rows}
        self._ranked = any(row["rank"] is not None for row in rows)

    def draw(self) -> Iterator[str]:
        """Yield the whole picture."""
        mains, others = split_threads(self._rows)
        places = group_places(mains)
        yield from self._draw_head()
        yield from self._draw_lags()
        yield ""
        yield self._paint(1, "Where they are")
        for place in places[:_MOST]:
            yield from self._wrap(f"{self._name(place.members)}: {self._describe(place)}")
        yield from _say_left(places[_MOST:], "places")
        yield ""
        yield from self._draw_tree(merge_stacks(places), "", _Budget(_MOST))
        yield from self._draw_others(group_places(others))

    def _draw_head(self) -> Iterator[str]:
        own = [row for row in self._rows if not row["is_child"]]
        jobs = {row["job"] for row in own}
        job = f"Job {own[0]['job']}: " if own and own[0]["job"] and len(jobs) == 1 else ""
        what = count_things(len(self._rows), "process")
        if self._ranked:
            count = sum(row["rank"] is not None for row in own)
            what = count_things(count, "rank")
            if started := len(self._rows) - len(own):
                what += f" and {count_things(started, 'process')} that they started"
            if rest := len(own) - count:  # as torchrun is
                what += f", beside {count_things(rest, 'other process')}"
        where = f" on {count_things(len(self._hosts), 'host')}" if len(self._hosts) > 1 else ""
        yield self._paint(1, clean(f"{job}{what}{where}"))
        notes: dict[str, list[RankThread]] = {}
        for row in self._rows:
            if row["note"]:
                notes.setdefault(row["note"], []).append(RankThread(row, {}))
        for note, members in notes.items():
            yield from wrap(f"({self._name(members)}: {clean(note)})", self._width)
        missing = list_missing(self._rows) if self._ranked else []
        if missing:
            ranks = f"rank{'s' if len(missing) > 1 else ''} {show_ranges(missing)}"
            yield self._paint(31, f"There is no recording of {ranks} here.")

    # ---- who is behind ---------------------------------------------------------------------------

    def _draw_lags(self) -> Iterator[str]:
        lags = find_lags(self._rows)
        if lags:
            yield ""
            yield self._paint(1, "Collectives")
        for lag in lags[:_MOST]:
            yield from self._draw_lag(lag)
        yield from _say_left(lags[_MOST:], "process groups")

    def _draw_lag(self, lag: Lag) -> Iterator[str]:
        least, most = lag.finished
        if lag.pending is None:
            done = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            yield clean(f"  group {lag.group}: each rank has finished {done}; the last is {lag.op}")
            return
        waiting = self._name([RankThread(row, {}) for row in lag.waiting])
        verb = "waits" if len(lag.waiting) == 1 else "wait"
        lasted = show_duration(lag.lasted_ns)
        yield f"  group {clean(lag.group)}: {waiting} {verb} in {clean(lag.op)}, " \
              f"no. {lag.pending:,}, for {lasted}"  # fmt: skip
        by_count: dict[int, list[RankThread]] = {}
        for row, finished in lag.behind:
            by_count.setdefault(finished, []).append(RankThread(row, {}))
        for finished, members in sorted(by_count.items()):
            verb = "is" if len(members) == 1 else "are"
            has = "it has" if len(members) == 1 else "they have"
            yield self._paint(31, f"    {self._name(members)} {verb} behind: {has} finished "
                                  f"{finished:,}")  # fmt: skip
        if lag.absent:
            yield self._paint(31, f"    of rank{'s' if len(lag.absent) > 1 else ''} "
                                  f"{show_ranges(lag.absent)} nothing is known here")  # fmt: skip
        if not by_count and not lag.absent:
            yield "    nobody is behind: all have begun it, so it is the transfer that does not end"

    # ---- who is where ----------------------------------------------------------------------------

    def _name(self, members: Sequence[RankThread]) -> str:
        """Return whose threads these are: `rank 17 (node3, pid 4242)`, `1,023 ranks (0-16, …)`."""
        rows = {(one.process["host"], one.process["pid"]): one.process for one in members}
        found = list(rows.values())
        if len(found) == 1:
            return self._name_one(found[0])
        ranks = [row["rank"] for row in found if row["rank"] is not None and not row["is_child"]]
        if len(ranks) == len(found):
            return f"{count_things(len(found), 'rank')} ({show_ranges(ranks)})"
        names = [str(row["pid"]) for row in found]
        if len(names) > _MOST_NAMED:
            names = [*names[: _MOST_NAMED - 1], "…", names[-1]]
        return f"{count_things(len(found), 'process')} ({', '.join(names)})"

    def _name_one(self, row: Row) -> str:
        host = f"{row['host']}, " if len(self._hosts) > 1 else ""
        if row["rank"] is None:
            return clean(f"process {row['pid']}" + (f" ({host[:-2]})" if host else ""))
        if row["is_child"]:
            return clean(f"process {row['pid']} of rank {row['rank']}")
        return clean(f"rank {row['rank']} ({host}pid {row['pid']})")

    def _describe(self, place: SharedPlace) -> str:
        threads = [member.thread for member in place.members]
        idle = sum(thread["idle"] for thread in threads)
        words = (
            "idle" if idle == len(threads) else "running" if not idle else f"{idle} of them idle"
        )
        lasted = min(thread["lasted_ns"] or 0 for thread in threads)
        if lasted >= _SHORT_NS:
            # As in StackText; an older agent does not say whether a thread has run meanwhile.
            at = ", at this line" if idle and any(one.get("has_run") for one in threads) else ""
            words += f"{at} for {show_duration(lasted)}"
        kinds = {thread["wait"] for thread in threads}
        frames = [(func, file) for func, file, _line in place.frames]
        wait = describe_wait(frames, kinds.pop() if len(kinds) == 1 else None)
        what = clean(name_place(place.frames, self._folder))
        return f"{what}, {words}" + (f": waits for {wait}" if wait and idle else "")

    def _draw_tree(self, node: TreeNode, indent: str, budget: _Budget) -> Iterator[str]:
        for line in self._draw_frames(node.frames, is_end=not node.children):
            yield f"{indent}{line}"
        if node.is_end and node.children:
            yield f"{indent}└ some of them are here"
        for at, child in enumerate(node.children):
            is_last = at == len(node.children) - 1
            if not budget.take():
                left = [member for each in node.children[at:] for member in each.members]
                yield f"{indent}└─ … {self._name(left)}, {len(node.children) - at} more branches"
                return
            whose = self._paint(33, self._name(child.members))
            yield f"{indent}{'└─' if is_last else '├─'} {whose}"
            yield from self._draw_tree(child, f"{indent}{'   ' if is_last else '│  '}", budget)

    def _draw_frames(self, frames: Sequence[Frame], *, is_end: bool) -> Iterator[str]:
        """Yield frames, root first; many of libraries, one after the other, in one line."""
        runs = groupby(frames, lambda frame: find_owner(frame[1]) == MINE)
        for is_mine, run in runs:
            found = list(run)
            kept = _INNERMOST if is_end and found[-1] is frames[-1] else 0
            if not (is_mine or self._all_frames) and len(found) >= MANY_CALLERS + kept:
                hidden, found = found[: len(found) - kept], found[len(found) - kept :]
                names = name_packages([file for _func, file, _line in hidden])
                yield self._paint(2, f"… {len(hidden)} frames of {names} (--all-frames)")
            yield from (self._draw_frame(*frame) for frame in found)

    def _draw_frame(self, func: str, file: str, line: int) -> str:
        if not file:
            return clean(func)
        place = clean(f"{shorten_file(file, self._folder)}:{line}")
        if find_owner(file) != MINE:
            return f"{clean(func)} " + self._paint(2, f"({place})")
        return f"{self._paint(36, clean(func))} ({place})"

    def _wrap(self, line: str) -> list[str]:
        return wrap(line, self._width, initial_indent="  ", subsequent_indent="    ")

    def _draw_others(self, places: Sequence[SharedPlace]) -> Iterator[str]:
        if places:
            yield ""
            yield self._paint(1, "Other threads")
        for place in places[:_MOST_OTHERS]:
            count = len(place.members)
            threads = f"{count_things(count, 'thread')} of " if count > 1 else ""
            names = {member.thread["name"] for member in place.members}
            name = f' "{clean(next(iter(names)))}"' if len(names) == 1 and None not in names else ""
            line = f"{threads}{self._name(place.members)}{name}: {self._describe(place)}"
            yield from self._wrap(line)
        yield from _say_left(places[_MOST_OTHERS:], "places")


class _Budget:
    """How many branches may still be drawn."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0


def _say_left(left: Sequence[object], what: str) -> Iterable[str]:
    return [f"  … and {len(left)} more {what}: --format json has all of them"] if left else []
