"""Read the stack table without Arrow: the tree of all stacks, and each thread's newest."""

from __future__ import annotations

from collections.abc import Iterator

from sonde import _core
from sonde.errors import Damaged, Newer
from sonde.session import ring
from sonde.session import texts as intern
from sonde.session.files import LOCALS, NODES
from sonde.session.folder import Session
from sonde.session.records import Locals
from sonde.session.ring import Batch, Ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sonde.session.held_lock import HeldLock

SAMPLES, THREADS = "python.stack_sample", "python.thread"
WEIGHTS = ("wall", "cpu", "gil")  # the times that every stack has
Node = tuple[int, int, int, int, int, int]  # parent, frame, samples; wall, CPU and GIL time
_KINDS = "IIIIiiqQqqq"
_AROUND = (
    "/sonde/job/profile.py",
    "/sonde/job/profile_run.py",
)  # our own code around the user's work in a run
GENERATED = "<memory>"  # the file of machine code that was made while the program ran


def is_native_place(file: str, line: int) -> bool:
    """Tell whether a frame is a function of machine code: those have no line, Python's have one."""
    return line == 0 and (file.startswith("/") or file == GENERATED) and not file.endswith(".py")


class StackFrame:
    """A function and its line in a stack. A native one has no line, and its file is the library."""

    __slots__ = ("file", "first_line", "func", "is_native", "line")

    def __init__(
        self, func: str, file: str, line: int, first_line: int, is_native: bool = False
    ) -> None:
        self.func, self.file, self.line, self.first_line = func, file, line, first_line
        self.is_native = is_native or is_native_place(file, line)


class Nodes:
    """Every sampled stack, as a tree: a node is a frame under its caller."""

    def __init__(self, columns: list[list[int]], texts: list[str | None], damaged: int) -> None:
        (self.ids, self.parents, self.funcs, self.files, self.lines, self.first_lines,
         self.hashes, self.samples, self.wall_ns, self.cpu_ns, self.gil_ns) = columns  # fmt: skip
        self.texts, self.damaged = texts, damaged
        self.t_ns = 0  # when the sums were written, if they belong to a run
        sound = not self.ids or self.ids[-1] == len(self.ids)
        self._places = None if sound else {number: at for at, number in enumerate(self.ids)}

    @classmethod
    def make_empty(cls) -> Nodes:
        """Return the table as it was before the first sample."""
        return cls([[] for _ in _KINDS], [], 0)

    def __len__(self) -> int:
        return len(self.ids)

    def find_parent(self, place: int) -> int:
        """Return the place of the caller; -1 at the root, or if the caller is damaged."""
        number = self.parents[place]
        return number - 1 if self._places is None else self._places.get(number, -1)

    def frame(self, place: int) -> StackFrame:
        """Return the frame of a node."""
        return StackFrame(
            self.text(self.funcs[place]),
            self.text(self.files[place]),
            self.lines[place],
            self.first_lines[place],
        )

    def text(self, number: int) -> str:
        """Return a text by its number; a question mark if it was lost or is damaged."""
        found = self.texts[number - 1] if 0 < number <= len(self.texts) else None
        return "?" if found is None else found

    def walk(self, place: int) -> Iterator[int]:
        """Yield the places of a stack, the innermost first."""
        while place >= 0:
            yield place
            place = self.find_parent(place)


def has_nodes(session: Session) -> bool:
    """Return whether the session has a stack table that is not archived yet."""
    try:
        ring.map_file(session.path(NODES))
    except FileNotFoundError:
        return False
    return True


def read_nodes(session: Session) -> Nodes:
    """Return all nodes; raise FileNotFoundError if there are none, or they are archived."""
    return read_sums(session, session.path(NODES))


def read_sums(session: Session, path: str) -> Nodes:
    """Read the nodes of a file that is laid out like the stack table."""
    try:
        count, buffers, damaged, _lost, t_ns = _core.nodes_read(ring.map_file(path))
    except _core.Damaged:
        raise Damaged(f"{path} is truncated or damaged") from None
    except _core.Newer:
        raise Newer(path) from None
    pairs = zip(buffers, _KINDS, strict=True)
    columns = [_cast(buffer, kind)[:count] for buffer, kind in pairs]
    # Texts are read after the nodes, because each text is written before a node that names it.
    nodes = Nodes(columns, intern.read_texts(session.folder), damaged)
    nodes.t_ns = t_ns
    return nodes


def _freeze(node: list[int]) -> Node:
    parent, frame, samples, wall_ns, cpu_ns, gil_ns = node
    return parent, frame, samples, wall_ns, cpu_ns, gil_ns


def _is_ours(nodes: Nodes, place: int) -> bool:
    """Return whether a node is our own code around the user's work, and not the work itself."""
    for at in nodes.walk(place):
        if nodes.text(nodes.files[at]).endswith(_AROUND):
            return at == place or not nodes.text(nodes.funcs[at]).endswith("wrapper")
    return False


def subtract(
    begin: Nodes, end: Nodes
) -> tuple[list[tuple[str, str, int, int]], list[Node], tuple[int, int, int, int]]:
    """Return what was added between two moments: frames, the tree of stacks with their sums, and
    the sums of our own code around the work."""
    before = {
        number: (begin.samples[at], begin.wall_ns[at], begin.cpu_ns[at], begin.gil_ns[at])
        for at, number in enumerate(begin.ids)
    }
    frames: dict[tuple[str, str, int, int], int] = {}
    nodes: list[list[int]] = []
    ours = [0, 0, 0, 0]
    places: dict[int, int] = {}

    def put(place: int) -> int:
        for at in reversed(list(end.walk(place))):
            if at not in places:
                one = end.frame(at)
                key = one.func, one.file, one.first_line, one.line
                frame = frames.setdefault(key, len(frames))
                places[at] = len(nodes)
                nodes.append([places.get(end.find_parent(at), -1), frame, 0, 0, 0, 0])
        return places[place]

    for at, number in enumerate(end.ids):
        old = before.get(number, (0, 0, 0, 0))
        new = end.samples[at], end.wall_ns[at], end.cpu_ns[at], end.gil_ns[at]
        grown = [b - a for a, b in zip(old, new, strict=True)]
        if min(grown) < 0:
            raise Damaged("a stack sum has shrunk, so one of the files is damaged")
        if any(grown) and _is_ours(end, at):
            ours = [a + b for a, b in zip(ours, grown, strict=True)]
        elif any(grown):
            nodes[put(at)][2:] = grown
    return list(frames), [_freeze(node) for node in nodes], (ours[0], ours[1], ours[2], ours[3])


def find_last_ns(session: Session) -> int | None:
    """Return when the last sample was taken; None if its ring is gone."""
    try:
        return max(_read_columns(session, SAMPLES)[0], default=None)
    except FileNotFoundError:
        return None


def _cast(buffer: bytearray, kind: str) -> list[int]:
    return memoryview(buffer).cast(kind).tolist()  # type: ignore[call-overload, no-any-return]


# Samples of a thread that waits are one row for a second; only one that runs now and then has many
# rows of one sample in a row. A few are no proof: whoever asks for the stacks ends a row, too.
_HELD_NS, _FEW = 500_000_000, 4


class ThreadStack:
    """The newest stack of a thread."""

    __slots__ = (
        "cpu_ns", "frames", "gil", "has_run", "idle", "interpreter", "lock", "name", "since_ns",
        "t_ns", "thread", "wait",
    )  # fmt: skip

    def __init__(self, thread: int, name: str | None, t_ns: int) -> None:
        self.thread, self.name, self.t_ns = thread, name, t_ns
        self.gil = self.idle = False
        self.since_ns: int | None = None  # since when it was seen at no other stack
        self.has_run = False  # it used the CPU since then: it does not wait for one and the same
        self.cpu_ns = self.interpreter = 0
        self.frames: list[StackFrame] = []  # the innermost first
        self.wait: str | None = None  # what it waits for, as the kernel knows it
        self.lock: HeldLock | None = None  # which lock it waits for, and who holds it


def read_newest(session: Session, since_ns: int = 0) -> list[ThreadStack]:
    """Return the newest stack, from `since_ns` on, of every thread that has not ended."""
    times, threads, hashes, samples, wall, *facts = _read_columns(session, SAMPLES)
    cpu, gil, idle, *newer = facts  # older recordings have neither interpreters nor waits
    newest: dict[int, int] = {}
    since: dict[int, int] = {}  # by thread: when the row began from which on its stack is the same
    short: dict[int, int] = {}  # by thread: rows since then that follow each other and are short
    for at, thread in enumerate(threads):
        if not samples[at] or times[at] < since_ns:
            continue  # without a sample a row has CPU time that came to light later, and no state
        if thread not in newest or times[newest[thread]] <= times[at]:
            if thread not in newest or hashes[newest[thread]] != hashes[at]:
                since[thread], short[thread] = times[at] - wall[at], 0
            elif short[thread] < _FEW:
                is_short = samples[at] == 1 and wall[at] < _HELD_NS
                short[thread] = _FEW if not idle[at] else short[thread] + 1 if is_short else 0
            newest[thread] = at
    names, ended = read_threads(session)
    nodes, texts = read_nodes(session), intern.read_texts(session.folder)
    places = {number: place for place, number in enumerate(nodes.hashes)}
    found = []
    for thread, at in newest.items():
        if ended.get(thread, -1) >= times[at]:
            continue
        one = ThreadStack(thread, names.get(thread), times[at])
        one.cpu_ns, one.gil, one.idle = cpu[at], bool(gil[at]), bool(idle[at])
        one.since_ns, one.has_run = since[thread], short[thread] >= _FEW
        one.interpreter = newer[0][at] if newer else 0
        if len(newer) > 1 and 0 <= newer[1][at] < len(texts):
            one.wait = texts[newer[1][at]]
        one.frames = [nodes.frame(place) for place in nodes.walk(places.get(hashes[at], -1))]
        found.append(one)
    return order_threads(found, session.pid)


def order_threads(threads: list[ThreadStack], pid: int) -> list[ThreadStack]:
    """Return the main thread, then the others by their numbers: once the kernel has given out its
    highest number and begins anew, theirs are lower than that of the main thread."""
    return sorted(threads, key=lambda one: (one.thread != pid, one.thread))


def read_threads(session: Session) -> tuple[dict[int, str], dict[int, int]]:
    """Return the newest name of each thread, and when ended threads ended."""
    times, threads, names, states = _read_columns(session, THREADS)
    texts = intern.read_texts(session.folder)
    named: dict[int, str] = {}
    ended: dict[int, int] = {}
    for at, thread in enumerate(threads):
        name, state = (texts[n] if 0 <= n < len(texts) else None for n in (names[at], states[at]))
        if state == "started":
            ended.pop(thread, None)
            named.pop(thread, None)
        if state == "ended":
            ended[thread] = times[at]
        if name is not None:
            named[thread] = name
    return named, ended


def _read_columns(session: Session, table: str, first: int = 0) -> list[list[int]]:
    """Return the columns of all rows in a ring, from a ticket on."""
    source = Ring(session.path(table + ring.SUFFIX))
    return read_columns(source, source.read(first))


def read_columns(source: Ring, batch: Batch) -> list[list[int]]:
    """Return rows of a ring as columns of numbers; texts as indices, NULL as -1."""
    columns = []
    for index, field in enumerate(source.schema.fields):
        data, valid = batch.buffers[2 * index], batch.buffers[2 * index + 1]
        assert data is not None
        if field.kind == "bool":
            column = [data[at >> 3] >> (at & 7) & 1 for at in range(batch.rows)]
        else:
            letter = "i" if field.kind == "text" else field.letter
            column = _cast(data, letter)[: batch.rows]
        if valid is not None:
            column = [
                value if valid[at >> 3] >> (at & 7) & 1 else -1 for at, value in enumerate(column)
            ]
        columns.append(column)
    return columns


def read_rows(session: Session, table: str, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small ring, from a ticket on, with their texts."""
    fields = Ring(session.path(table + ring.SUFFIX)).schema.fields
    columns = _read_columns(session, table, first)
    texts = intern.read_texts(session.folder)
    for values in zip(*columns, strict=True):
        yield {
            field.name: (texts[value] if 0 <= value < len(texts) else None)
            if field.kind == "text"
            else value
            for field, value in zip(fields, values, strict=True)
        }


def read_tasks(session: Session, since_ns: int) -> Iterator[list[dict[str, Any]]]:
    """Yield asyncio's tasks as an inspection since then found them, each as a list of frames, the
    innermost first."""
    tasks: dict[object, list[dict[str, Any]]] = {}
    for row in read_rows(session, "python.task"):
        if row["t_ns"] >= since_ns:
            tasks.setdefault(row["task"], []).append(row)
    yield from tasks.values()


def read_newest_rows(session: Session, table: str, most: int) -> Iterator[dict[str, Any]]:
    """Yield at most so many of the newest rows of a ring, with their texts."""
    head = Ring(session.path(table + ring.SUFFIX)).head
    yield from read_rows(session, table, max(0, head - most))


def read_inspection(session: Session) -> Locals | None:
    """Return the stacks of the last inspection, with their local variables; None if there was
    none."""
    try:
        return Locals.read(session.path(LOCALS))
    except FileNotFoundError:
        return None


def read_locals(session: Session) -> dict[tuple[object, ...], dict[str, str]]:
    """Return local variables from the last inspection, by thread, height in the stack (the
    outermost frame is 1), function and line."""
    found = read_inspection(session)
    return {
        (int(thread), len(frames) - depth, frame.func, frame.line): frame.locals
        for thread, frames in ({} if found is None else found.threads).items()
        for depth, frame in enumerate(frames)
    }
