"""Snapshots: profiles of a program that does not end, as numbered files, without stopping it.

The stack sums only ever grow, and outlive the process. A snapshot reads them and writes two files
of the same moment: one since the last snapshot, and one since the start."""

from __future__ import annotations

import contextlib
import marshal
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sonde import _core
from sonde.errors import Error, NotAnswering
from sonde.session import files, pstats_file, stack_table
from sonde.session.folder import Session
from sonde.session.records import SnapshotAbout

FOLDER = "snapshots"
_STATE, _LOCK = "state", "lock"
LOCK_S = 60.0  # a snapshot of a large program takes a few seconds


def take(
    session: Session,
    *,
    weight: str = "wall",
    keep: int = 1000,
    read: Callable[[Session], stack_table.Nodes] = stack_table.read_nodes,
) -> dict[str, str]:
    """Write the next snapshot; return the paths of both files by kind. `read` reads the stack sums:
    those of a sealed session are in its archive."""
    if session.read_sealed() is None and not stack_table.has_nodes(session):
        raise Error(
            f"no stack of process {session.pid} was sampled; "
            f"`sonde config {session.pid} source.stack=on` starts sampling"
        )
    with _locked(session) as folder:
        last = _read_state(session, folder)
        nodes = read(session)
        now = _LastSnapshot(last.number + 1, _now_ns(session), nodes)
        paths = {}
        for kind, before in ((pstats_file.DELTA, last), (pstats_file.TOTAL, _LastSnapshot(0, 0))):
            about = _describe(session, kind, now.number, before.end_ns, now.end_ns, weight)
            stats = pstats_file.summarise(_list_paths(nodes, before, now, weight))
            paths[kind] = name_file(session, now.number, kind)
            path = os.path.join(folder, _name(now.number, kind))
            files.write_whole(path, pstats_file.dump(stats, [about]), sync=True)
        # Written last: if we die first, the next snapshot gets this number and covers this time.
        files.write_whole(os.path.join(folder, _STATE), marshal.dumps(vars(now), 4), sync=True)
        _drop_old(folder, now.number - keep, pstats_file.DELTA, pstats_file.TOTAL)
        return paths


def write_calls(session: Session, stats: pstats_file.Stats) -> str:
    """Write exact calls since counting began; they are numbered like the samples."""
    with _locked(session) as folder:
        names = (name.partition("-") for name in os.listdir(folder))
        taken = [int(number) for number, _, rest in names if rest == "calls.prof"]
        number, now_ns = max(taken, default=0) + 1, _now_ns(session)
        about = _describe(session, pstats_file.TOTAL, number, 0, now_ns, "wall")
        name = _name(number, "calls")
        data = pstats_file.dump(stats, [about.replace(of="calls")])
        files.write_whole(os.path.join(folder, name), data, sync=True)
        keep = int(session.read_config()["snapshot.keep"])
        _drop_old(folder, number - keep, "calls")
        return session.path(FOLDER, name)


def name_file(session: Session, number: int, kind: str) -> str:
    """Return the path of a snapshot."""
    return session.path(FOLDER, _name(number, kind))


def _name(number: int, kind: str) -> str:
    return f"{number:06d}-{kind}.prof"


def count(session: Session) -> int:
    """Return the number of the newest snapshot; 0 if there is none."""
    return _read_state(session, session.path(FOLDER)).number


def list_snapshots(session: Session) -> list[tuple[str, SnapshotAbout]]:
    """Return the paths of a session's snapshots and what each is about, the oldest first, without
    damaged ones."""
    try:
        names = sorted(os.listdir(session.path(FOLDER)))
    except FileNotFoundError:
        return []
    found = []
    for path in (session.path(FOLDER, name) for name in names if name.endswith(".prof")):
        with contextlib.suppress(Error):
            found += [(path, about) for about in pstats_file.load(path)[1]]
    return found


class _LastSnapshot:
    """The stack sums at the last snapshot, by stack: numbers of nodes are not archived."""

    def __init__(self, number: int, end_ns: int, nodes: stack_table.Nodes | None = None) -> None:
        self.number, self.end_ns = number, end_ns
        self.stacks = [] if nodes is None else nodes.hashes
        self.samples = [] if nodes is None else nodes.samples
        self.wall = [] if nodes is None else nodes.wall_ns
        self.cpu = [] if nodes is None else nodes.cpu_ns
        self.gil = [] if nodes is None else nodes.gil_ns

    def weigh(self, weight: str) -> dict[int, tuple[int, int]]:
        """Return samples and nanoseconds of each stack."""
        sums = zip(self.samples, getattr(self, weight), strict=True)
        return dict(zip(self.stacks, sums, strict=True))


def _read_state(session: Session, folder: str) -> _LastSnapshot:
    state = _LastSnapshot(0, 0)
    try:
        with files.open_plain(os.path.join(folder, _STATE)) as file:
            vars(state).update(marshal.load(file))
        for weight in stack_table.WEIGHTS:
            state.weigh(weight)  # raises if a list is shorter than the others
    except FileNotFoundError:
        pass  # this is the first snapshot
    except (EOFError, ValueError, TypeError):
        usual = session.path(FOLDER)
        raise Error(f"{usual}/{_STATE} is damaged; remove {usual} to start over") from None
    return state


@contextmanager
def _locked(session: Session) -> Iterator[str]:
    """Lock the snapshots of a session for this process, so that each number is used once."""
    try:
        with (
            files.OwnFolder(session.folder, FOLDER, make=True) as folder,
            files.Locked(os.path.join(folder, _LOCK), LOCK_S),
        ):
            yield folder
    except TimeoutError as error:
        raise NotAnswering(f"{session.path(FOLDER)}: {error.strerror}; try again") from None


def _list_paths(
    nodes: stack_table.Nodes, before: _LastSnapshot, now: _LastSnapshot, weight: str
) -> Iterator[tuple[list[pstats_file.Function], int, int]]:
    """Yield the stacks whose sums have grown, and by how much."""
    old, new = before.weigh(weight), now.weigh(weight)
    names: dict[int, pstats_file.Function] = {}
    for place, stack in enumerate(nodes.hashes):
        samples, ns = (a - b for a, b in zip(new[stack], old.get(stack, (0, 0)), strict=True))
        if samples > 0 and (ns > 0 or weight == "wall"):
            path = [names.get(at) or _name_function(nodes, names, at) for at in nodes.walk(place)]
            yield path[::-1], samples, ns


def _name_function(
    nodes: stack_table.Nodes, names: dict[int, pstats_file.Function], place: int
) -> pstats_file.Function:
    frame = nodes.frame(place)
    names[place] = frame.file or "~", frame.first_line, frame.func
    return names[place]


def _now_ns(session: Session) -> int:
    """Return the current time, or when the process ended."""
    if session.is_alive():
        return _core.clock_ns()
    sealed = session.read_sealed()
    if sealed is not None:
        return sealed.end_wall_ns - session.wall_offset_ns
    control = session.read_control()
    ended = control["state"] in (_core.STOPPED, _core.EXITED)
    return control["state_t_ns"] if ended else _core.clock_ns()


def _describe(
    session: Session, kind: str, number: int, start_ns: int, end_ns: int, weight: str
) -> SnapshotAbout:
    """Describe a snapshot, with times on the monotonic clock and on the wall clock."""
    start_ns = start_ns or session.meta.monotonic_ns
    return SnapshotAbout(
        kind=kind, of="samples", weight=weight, number=number, session=session.id,
        host=session.host, pid=session.pid, rank=session.rank,
        command=" ".join(session.meta.argv), python=session.meta.python, start_ns=start_ns,
        end_ns=end_ns, start_wall=_wall(session, start_ns), end_wall=_wall(session, end_ns),
    )  # fmt: skip


def _wall(session: Session, t_ns: int) -> str:
    seconds = (t_ns + session.wall_offset_ns) / 1e9
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _drop_old(folder: str, up_to: int, *kinds: str) -> None:
    """Remove the oldest snapshots; the newest cumulative one still has everything."""
    for kind in kinds:
        for number in range(up_to, 0, -1):
            try:
                os.unlink(os.path.join(folder, _name(number, kind)))
            except FileNotFoundError:
                break  # older ones were removed before


def main() -> None:
    """Take a snapshot of the session given as an argument; the job's native thread starts this
    when a signal asks for one."""
    import sys

    take(Session(sys.argv[1]))
