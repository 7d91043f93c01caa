"""Stacks of threads and tasks as people read them: equal ones once, with short paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from sonde.analysis.code_names import (
    MANY_CALLERS,
    MINE,
    SONDE,
    count_start,
    find_owner,
    name_module,
    shorten_file,
    skip_start,
)
from sonde.analysis.source_lines import read_source
from sonde.analysis.wait_words import describe_lock, describe_wait
from sonde.attach.native_names import shorten_name
from sonde.attach.native_text import pick_frames
from sonde.session.stack_table import StackFrame, ThreadStack
from sonde.words import clean, shorten_func, show_duration

_SHORT_NS = 10**9  # a wait that is shorter is no news
_MOST_NAMES = 4
_MOST_OF_LIBRARIES = 8  # frames, the innermost ones, that are shown of a stack of nothing else
_LEAST = 12  # columns of a source line that still tell something
_STARTS = ("Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", "_bootstrap",
           "_bootstrap_inner", "run")  # fmt: skip
_FUTURES = {"_asyncio.FutureIter": "a future", "generator": "a future"}
Locals = Mapping[int, Sequence[Mapping[str, str]]]  # by thread, then as its frames
Task = Sequence[Mapping[str, object]]  # its frames


class Painter:
    """Colours, or none where the output is no terminal."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured

    def __call__(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured and text else text


class StackText:
    """Draws the stacks of one process; `folder` is where it began, `before_ns` when: a source file
    that was changed since is not quoted, nor is any if it is 0."""

    def __init__(
        self, paint: Painter, folder: str | None, before_ns: int, width: int = 10**6, *,
        all_frames: bool = True,
    ) -> None:  # fmt: skip
        self._paint, self._folder, self._before_ns = paint, folder, before_ns
        self._width, self._all_frames = width, all_frames

    def draw_head(self, title: str, rest: str) -> Iterator[str]:
        """Yield what stands above a stack: a title, which is bold, and a text, which may take
        several lines."""
        first, *more = wrap(title + rest, self._width, subsequent_indent="  ") or [""]
        known = min(len(title), len(first))
        yield self._paint(1, first[:known]) + first[known:]
        yield from more

    def draw_threads(self, threads: Iterable[ThreadStack], variables: Locals) -> Iterator[str]:
        """Yield the stacks of threads; those that are equal in all but their names once."""
        groups: dict[object, list[ThreadStack]] = {}
        threads = list(threads)
        names = {one.thread: one.name for one in threads}
        for one in threads:
            frames = tuple((frame.func, frame.file, frame.line) for frame in one.frames)
            alone = one.thread if one.thread in variables else None
            lock = one.lock and (one.lock.lock, one.lock.holder)
            key = frames, one.idle, one.wait, one.gil, one.interpreter, alone, lock
            groups.setdefault(key, []).append(one)
        for group in groups.values():
            yield ""
            title, whose = _name(group)
            yield from self.draw_head(title, f"{whose}  {self._describe(group, names)}")
            frames_shown = _skip_start(pick_frames(group[0].frames))
            callers = 0
            if not self._all_frames:
                frames_shown = _skip_launch(frames_shown)
                callers = _count_callers(frames_shown)
            for depth, frame in enumerate(frames_shown[: len(frames_shown) - callers]):
                if depth and find_owner(frame.file) == SONDE:
                    continue  # between the program's own: it only calls on
                if frame.is_native:
                    yield self._draw_native(frame)
                    continue
                yield self._draw_frame(frame.func, frame.file, frame.line)
                known = variables.get(group[0].thread)
                for name, value in (known[depth] if known else {}).items():
                    yield f"        {clean(name)} = {clean(value)}"
            if callers:
                yield self._paint(2, f"    {_name_callers(frames_shown[-callers:])}")

    def draw_frames(self, frames: Iterable[StackFrame]) -> Iterator[str]:
        """Yield the frames of one stack."""
        for frame in frames:
            yield self._draw_frame(frame.func, frame.file, frame.line)

    def draw_tasks(self, tasks: Iterable[Task]) -> Iterator[str]:
        """Yield the stacks of asyncio's tasks; those that are equal in all but their names once."""
        groups: dict[object, list[Task]] = {}
        for task in tasks:
            frames = tuple((row["func"], row["file"], row["lineno"]) for row in task)
            key = frames, task[0]["state"], task[0]["waits_for"]
            groups.setdefault(key, []).append(task)
        for group in groups.values():
            first = group[0][0]
            names = _join(sorted((clean(str(task[0]["name"])) for task in group), key=_order))
            wait = describe_wait([(str(row["func"]), str(row["file"])) for row in group[0]])
            wait = wait or _FUTURES.get(str(first["waits_for"]), str(first["waits_for"] or ""))
            words = f"{first['state']} for {clean(wait)}" if wait else str(first["state"])
            yield ""
            yield from self.draw_head(_count("Task", group), f" {names}  {words}")
            for depth, row in enumerate(group[0]):
                if depth and find_owner(str(row["file"])) == SONDE:
                    continue  # between the program's own: it only calls on
                yield self._draw_frame(str(row["func"]), str(row["file"]), int(str(row["lineno"])))

    def _describe(self, group: Sequence[ThreadStack], names: Mapping[int, str | None]) -> str:
        """Return the state, how long it has lasted, and what it waits for."""
        one = group[0]
        lasted = [each.t_ns - each.since_ns for each in group if each.since_ns is not None]
        state = "idle" if one.idle else "running"
        if one.interpreter:
            state += f" in interpreter {one.interpreter}"
        words = f"{state}, holds the GIL" if one.gil else state
        if lasted and min(lasted) >= _SHORT_NS:
            # A loop that sleeps a little, again and again, is always seen asleep, at one line.
            at = ", at this line" if one.idle and any(each.has_run for each in group) else ""
            words += f"{at} for {show_duration(min(lasted))}"
        python = [(frame.func, frame.file) for frame in one.frames if not frame.is_native]
        wait = describe_wait(python, one.wait) if one.idle else ""
        if one.lock:
            taken = one.lock.taken
            place = f"{shorten_file(taken[1], self._folder)}:{taken[2]}" if taken else ""
            wait = describe_lock(wait, one.lock, names, place)
        return words + (f": waits for {clean(wait)}" if wait else "")

    def _draw_native(self, frame: StackFrame) -> str:
        library = os.path.basename(frame.file)
        own = f"    {clean(shorten_name(frame.func))}"
        return own + (self._paint(2, f" ({clean(library)})") if library else "")

    def _draw_frame(self, func: str, file: str, line: int) -> str:
        if not file:
            return clean(f"    {func}")
        func = shorten_func(func)
        place = clean(f"{shorten_file(file, self._folder)}:{line}")
        if len(f"    {clean(func)} ({place})") > self._width:
            func = func.rpartition(".")[2]
        if find_owner(file) != MINE:
            return f"    {clean(func)} " + self._paint(2, f"({place})")
        source = clean(read_source(file, line, self._before_ns)) if self._before_ns else ""
        own = self._paint(36, clean(func))
        room = self._width - len(f"    {clean(func)} ({place})  ")
        if len(source) > room:
            source = source[: max(0, room - 1)] + "…" if room > _LEAST else ""
        return f"    {own} ({place})" + (self._paint(2, f"  {source}") if source else "")


def _name(group: Sequence[ThreadStack]) -> tuple[str, str]:
    """Return how many threads these are, and their names; a name that several have once."""
    if len(group) == 1:
        return f"Thread {group[0].thread}", f' "{clean(group[0].name)}"' if group[0].name else ""
    names = dict.fromkeys(f'"{clean(one.name)}"' if one.name else str(one.thread) for one in group)
    return _count("Thread", group), f" {_join(list(names))}"


def _skip_start(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return a stack without the functions of `threading` that every thread begins with."""
    end = len(frames)
    while (
        end > 1
        and frames[end - 1].func in _STARTS
        and name_module(frames[end - 1].file) == "threading"
    ):
        end -= 1
    return frames[:end]


def _skip_launch(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return a stack without what only runs the program, or has started this worker."""
    outside = skip_start(frames[::-1])
    return outside[count_start([frame.file for frame in outside]) :][::-1]


def _count_callers(frames: Sequence[StackFrame]) -> int:
    """Return how many frames of libraries lead to the user's own code, or in a stack without any to
    its innermost ones, if they are many: which way a server calls its application is not what
    somebody asks."""
    own = [
        at for at, frame in enumerate(frames)
        if not frame.is_native and find_owner(frame.file) == MINE
    ]  # fmt: skip
    count = len(frames) - (own[-1] + 1 if own else _MOST_OF_LIBRARIES)
    return count if count >= MANY_CALLERS else 0


def _name_callers(frames: Sequence[StackFrame]) -> str:
    known = [frame for frame in frames if find_owner(frame.file) != SONDE]
    names = name_packages([frame.file for frame in known if not frame.is_native])
    return f"called by {len(known)} frames of {names} (--all-frames)"


def name_packages(files: Iterable[str]) -> str:
    """Return the packages that files are of, each once: the first few."""
    packages = [*dict.fromkeys(name_module(file).partition(".")[0] for file in files)]
    more = ", \N{HORIZONTAL ELLIPSIS}" if len(packages) > _MOST_NAMES else ""
    return clean(", ".join(packages[:_MOST_NAMES]) + more)


def _order(name: str) -> tuple[int, str]:
    return len(name), name  # Task-9 before Task-10


def _count(word: str, group: Sequence[object]) -> str:
    return word if len(group) == 1 else f"{len(group)} {word.lower()}s"


def _join(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])}, … {names[-1]}"
