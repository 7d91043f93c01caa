"""Where the time went: the call tree of the user's own code, working and waiting apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sonde.analysis.code_fold import Step, add_c_call, fold, keep_all
from sonde.analysis.code_names import LIBRARY, MINE, is_ours, name_module
from sonde.analysis.hot_call import Leaders, LibraryTime, cut_package, cut_tail
from sonde.analysis.profile import Profile, ProfileFrame
from sonde.analysis.rest import is_at_rest
from sonde.session.stack_table import is_native_place
from sonde.words import shorten_func

SORTS = ("total", "working", "waiting")
OUTSIDE = "outside"
ITSELF = "(this line itself)"
INSIDE = "\N{HORIZONTAL ELLIPSIS} "  # before what takes the time inside of a library's call
_MAIN = 0.05  # a share of all time from which on a node is shown without being asked for
_FEW, _MOST = 10, 30  # nodes that are shown then
_HOT = 0.05  # a share of all time from which on it is told what a library does with it
_TELLING = 0.2  # a share of a library call's own time from which on a package is named
_CALLBACK = "Handle._run", "/asyncio/events.py"
_STACKS = """\
{selected}
SELECT part, thread, stack, idle, call, wait, SUM(wall_ns)::BIGINT, SUM(cpu_ns)::BIGINT,
    LEAST(COALESCE(SUM(queue_ns) FILTER (NOT idle), 0), SUM(wall_ns - cpu_ns))::BIGINT
FROM selected GROUP BY ALL ORDER BY ALL
"""


class CodeNode:
    """A function, or a call of a library, under its callers."""

    __slots__ = ("children", "cpu_ns", "lines", "own_ns", "packages", "step", "threads",
                 "waiting_ns", "waits", "working_ns")  # fmt: skip

    def __init__(self, step: Step) -> None:
        self.step = step
        self.children: dict[object, CodeNode] = {}
        self.working_ns = self.waiting_ns = self.cpu_ns = 0
        self.own_ns: dict[int, list[int]] = {}  # by line: working and waiting, in the node itself
        # The waiting time of the node itself by line and kind of wait: gil, sleep, network, …
        self.waits: dict[tuple[int, str | None], int] = {}
        self.lines: dict[int, int] = {}  # by line: all its time
        self.packages: dict[str, int] = {}  # of a library's call: whose code its own time is in
        self.threads: set[tuple[int, int]] = set()

    def add(self, thread: tuple[int, int], wall_ns: int, cpu_ns: int, *, is_idle: bool) -> None:
        """Add time in it, or in what it called."""
        if is_idle:
            self.waiting_ns += wall_ns
        else:
            self.working_ns += wall_ns
        self.cpu_ns += cpu_ns
        self.threads.add(thread)

    def add_own(
        self, line: int, package: str, wall_ns: int, wait: str | None, *, is_idle: bool
    ) -> None:
        """Remember in whose code time of the node itself was spent, or what it waited for."""
        self.packages[package] = self.packages.get(package, 0) + wall_ns
        if is_idle:
            self.waits[line, wait] = self.waits.get((line, wait), 0) + wall_ns

    def take_own(self, package: str, wall_ns: int) -> None:
        """Take time away from the node itself that a node below it stands for."""
        self.packages[package] = self.packages.get(package, 0) - wall_ns

    @property
    def total_ns(self) -> int:
        """The time in it and in what it called."""
        return self.working_ns + self.waiting_ns

    @property
    def unsaid_wait(self) -> str | None:
        """The kind of wait that most of its waiting time is, where its name does not say it: any
        function may wait for the GIL, and a line of the user's own for a lock."""
        kinds: dict[str | None, int] = {}
        for (_, kind), wall_ns in self.waits.items():
            kinds[kind] = kinds.get(kind, 0) + wall_ns
        kind = max(kinds, key=lambda one: kinds[one], default=None)
        is_most = 2 * kinds.get(kind, 0) > self.waiting_ns and 10 * kinds[kind] > self.total_ns
        return kind if is_most and (kind == "gil" or self.step.owner == MINE) else None

    @property
    def line(self) -> int:
        """The line that most of its time was spent at; 0 if it has none."""
        return max(self.lines, key=self.lines.__getitem__, default=0)


class CodeTree:
    """The tree, and what was left out of it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.frames: Mapping[int, Sequence[ProfileFrame]] = {}  # by stack, root first
        self.root = CodeNode(Step("", MINE, "", 0, 0))
        self.rest_ns = 0  # of idle threads, and of event loops without work
        self.queue_ns = 0  # of its working time: ready to run, without a processor
        self.callers: set[tuple[str, str]] = set()  # functions of libraries that call the user's
        self.library_calls: dict[CodeNode, list[LibraryTime]] = {}
        self.compiled: dict[str, int] = {}  # functions without frames of Python, with their time
        # The stacks that end in a node, by its line, waiting or not, with their time.
        self.ends: dict[CodeNode, dict[tuple[int, bool], dict[int, int]]] = {}

    def add_end(
        self, node: CodeNode, line: int, stack: int, wall_ns: int, *, is_idle: bool
    ) -> None:
        """Remember that a stack ends in a line of a node."""
        stacks = self.ends.setdefault(node, {}).setdefault((line, is_idle), {})
        stacks[stack] = stacks.get(stack, 0) + wall_ns

    def list_nodes(
        self, sort: str = "total", limit: int = 0, least: float = 0.01
    ) -> list[tuple[int, CodeNode]]:
        """Return nodes with their depth, callers first, the heaviest first; at most `limit`, and
        those with at least a share `least` of the whole. A node's own time is a node below it."""
        order = f"{sort}_ns"
        floor = max(1, least * getattr(self.root, order))
        found = list(_walk(self.root, order, floor))
        if limit and len(found) > limit:
            # A caller has no less time than what it calls, and comes before it.
            heavy = sorted(range(len(found)), key=lambda at: -getattr(found[at][1], order))[:limit]
            found = [found[at] for at in sorted(heavy)]
        return found

    def list_main_nodes(self, sort: str = "total") -> list[tuple[int, CodeNode]]:
        """Return what a person reads in ten seconds: the nodes that matter, or the heaviest few."""
        found = self.list_nodes(sort, _MOST, _MAIN)
        return found if len(found) >= _FEW else self.list_nodes(sort, _FEW)

    def add_hot_calls(self, own: Callable[[str], str]) -> None:
        """Add to the calls of libraries that take much of the time what takes it inside of them."""
        least = _HOT * self.root.total_ns
        leaders = Leaders(own, self.callers, least)
        for node, parts in self.library_calls.items():
            if sum(part.wall_ns for part in parts) < least:
                continue
            for hot in leaders.find(parts):
                step = Step(INSIDE + hot.func, LIBRARY, hot.file, hot.line, 0)
                child = node.children[step.key] = CodeNode(step)
                for part in (parts[at] for at in hot.inside):
                    child.add(part.thread, part.wall_ns, part.cpu_ns, is_idle=part.is_idle)
                    child.lines[hot.line] = child.total_ns
                    node.own_ns[part.line][part.is_idle] -= part.wall_ns
                    node.take_own(_name_package(part.tail), part.wall_ns)
                if hot.is_compiled:
                    self.compiled[hot.func] = self.compiled.get(hot.func, 0) + child.total_ns


def read_tree(
    profile: Profile, *, mine: Sequence[str] = (), all_frames: bool = False, idle: bool = False,
    hot_calls: bool | str = False,
) -> CodeTree:  # fmt: skip
    """Read the tree of a selection. What fits a pattern of `mine` counts as the user's own code;
    the patterns of the setting `code.mine` do as well. `idle` keeps threads without work;
    `hot_calls` adds what takes the time inside of a library's call; OUTSIDE, only where nothing of
    the user's own has called it."""
    tree = CodeTree(profile)
    own = profile.make_owner(mine)
    tree.frames = frames = profile.read_frames()
    has_mine = any(own(frame.file) == MINE for one in frames.values() for frame in one)
    steps = {
        stack: keep_all(one, own) if all_frames else fold(one, own, by_package=not has_mine)
        for stack, one in frames.items()
    }
    tree.callers = _find_callers(frames.values(), own) if hot_calls else set()
    rows = profile.recording.query(_STACKS.format(selected=profile.selected_sql))
    if rows.num_rows == 0:
        raise profile.explain_nothing()
    columns = [column.to_pylist() for column in rows.columns]
    for part, thread, stack, is_idle, call, wait, *times in zip(*columns, strict=True):
        wall_ns, cpu_ns, queue_ns = times
        path, seen = add_c_call(steps.get(stack, [_LOST]), call), frames.get(stack, ())
        is_main = thread == profile.processes[part].pid
        if is_idle and not idle and is_at_rest(seen, own, is_main=is_main, has_mine=has_mine):
            tree.rest_ns += wall_ns
        elif path:
            whose = part, thread
            tree.queue_ns += max(0, queue_ns)
            node, last = add_path(tree.root, path, whose, *times[:2], is_idle=is_idle), path[-1]
            tree.add_end(node, last.line, stack, wall_ns, is_idle=is_idle)
            node.add_own(last.line, _name_package(seen), wall_ns, wait, is_idle=is_idle)
            tree.root.add_own(last.line, "", wall_ns, wait, is_idle=is_idle)
            if hot_calls and _is_library_call(path, seen, own, outside=hot_calls == OUTSIDE):
                tail = cut_tail(seen, own) if has_mine else cut_package(seen)
                time = LibraryTime(tail, last.line, whose, wall_ns, cpu_ns, is_idle, call)
                tree.library_calls.setdefault(node, []).append(time)
    tree.add_hot_calls(own)
    return tree


def _is_library_call(
    path: Sequence[Step],
    seen: Sequence[ProfileFrame],
    own: Callable[[str], str],
    *,
    outside: bool,
) -> bool:
    last = path[-1]
    if last.owner != LIBRARY or last.name.startswith("import"):
        return False
    is_asked = any(one.owner == MINE for one in path)
    return not outside or not is_asked or _is_looping(seen, own)


def _is_looping(seen: Sequence[ProfileFrame], own: Callable[[str], str]) -> bool:
    """Return whether an event loop calls back, and nothing of the user's own in that: the line that
    has started the loop says nothing of what takes the time."""
    for frame in reversed(seen):
        if own(frame.file) == MINE:
            return False
        if frame.file.endswith(_CALLBACK[1]) and frame.func == _CALLBACK[0]:
            return True
    return False


_LOST = Step("<lost>", MINE, "", 0, 0)


def _name_package(frames: Sequence[ProfileFrame]) -> str:
    """Return whose code the innermost frame of Python is, but for ours; empty if there is none."""
    known = (
        one for one in reversed(frames)
        if not is_native_place(one.file, one.lineno) and not is_ours(one.file)
    )  # fmt: skip
    frame = next(known, None)
    return "" if frame is None else name_module(frame.file).partition(".")[0]


def _find_callers(
    stacks: Iterable[Sequence[ProfileFrame]], own: Callable[[str], str]
) -> set[tuple[str, str]]:
    """Return the functions that are not the user's own and that call the user's: a server's loop,
    `apply`. What they take themselves says little, and what they call is told below them."""
    found = set()
    for frames in stacks:
        is_mine = [own(frame.file) == MINE for frame in frames]
        last = max((at for at, mine in enumerate(is_mine) if mine), default=0)
        for frame in (frames[at] for at in range(last) if not is_mine[at]):
            found.add((shorten_func(frame.func), frame.file))
    return found


def add_path(
    root: CodeNode, path: Sequence[Step], thread: tuple[int, int], wall_ns: int, cpu_ns: int,
    *, is_idle: bool,
) -> CodeNode:  # fmt: skip
    """Add a folded stack with its time to a tree, and return the innermost node of it."""
    node = root
    for step in (None, *path):
        if step is not None:
            child = node.children.get(step.key)
            if child is None:
                child = node.children[step.key] = CodeNode(step)
            node = child
            node.lines[step.line] = node.lines.get(step.line, 0) + wall_ns
        node.add(thread, wall_ns, cpu_ns, is_idle=is_idle)
    own = node.own_ns.setdefault(node.step.line if not path else path[-1].line, [0, 0])
    own[is_idle] += wall_ns
    return node


def _walk(root: CodeNode, order: str, floor: float) -> Iterator[tuple[int, CodeNode]]:
    waiting = [(0, node) for node in _list_below(root, order, floor)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        waiting += [(depth + 1, below) for below in _list_below(node, order, floor)]


def _list_below(node: CodeNode, order: str, floor: float) -> list[CodeNode]:
    """Return what is below a node, and its own lines if it has both, in ascending order."""
    found = list(node.children.values())
    if found:
        found += [_make_own(node, line) for line in node.own_ns]
    found = [one for one in found if getattr(one, order) >= floor]
    return sorted(found, key=lambda one: (getattr(one, order), one.step.name))


def _make_own(node: CodeNode, line: int) -> CodeNode:
    """Return one line of a function, without what it called, as a node."""
    name = ITSELF if node.step.owner == MINE else name_inside(node)
    one = CodeNode(node.step._replace(name=name, line=line, first_line=0))
    one.working_ns, one.waiting_ns = node.own_ns[line]
    one.lines[line] = one.total_ns
    one.waits = {key: wall_ns for key, wall_ns in node.waits.items() if key[0] == line}
    return one


def name_inside(node: CodeNode) -> str:
    """Return whose code most of a library call's own time was spent in: a call of Django spends it
    in sqlite3 or json as well."""
    whole = sum(node.packages.values())
    ranked = sorted(node.packages, key=lambda package: -node.packages[package])
    told = [name for name in ranked if name and node.packages[name] > _TELLING * whole]
    return f"(in {', '.join(told)})" if told else "(in libraries)"
