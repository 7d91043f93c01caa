"""The collector: one process per host and user that watches all sessions from outside.

It archives rows before the rings overwrite them, reads the sensors, seals sessions that have ended
and removes what retention no longer allows. It keeps nothing that is not on disk: every row is in
a ring or in a Parquet file, so it can be killed at any time and another takes over."""

from __future__ import annotations

import functools
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sonde import _core, environ
from sonde.collector.companions import Companions
from sonde.collector.crash_processes import CrashProcesses
from sonde.collector.heap_watch import HeapWatch
from sonde.collector.lock import is_replaced, take_lock, write_lock
from sonde.collector.process_end import KillCounts, ProcessEnd
from sonde.collector.retention import Retention, remove_leftovers
from sonde.collector.sensor_schedule import Sensors
from sonde.collector.sensors._files import Reader
from sonde.errors import Damaged, NoSession
from sonde.launch import collector_report, collector_starts
from sonde.session import Session, files, list_folders, ring, runs, snapshots, stack_table, texts
from sonde.session.memory_kills import count_starts
from sonde.session.process import read_start_ticks
from sonde.session.run import FINAL, PROCESSING, Run
from sonde.session.schema import make_schema
from sonde.tables import name_row
from sonde.tables.recording import SourceLog
from sonde.tables.system import Process

TICK_S = 0.2  # a ring of the default size takes 300 k rows/s at this pace
LINGER_S = 10.0  # how long to stay after the last session
SEAL_S = 0.5  # for sealing sessions, in one scan
PROVEN_S = 3.0  # after this time it is not our fault if we die: see kernel/collector_lock.c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.collector.drain import Drain


@functools.cache
def find_archive_problem() -> str | None:
    """Return why nothing can be archived here; None if it can.

    Without Arrow, or with one for another Python, everything else is done: rows stay in the rings
    until newer ones take their place, and a collector that has Arrow archives what is left."""
    try:
        import sonde.collector.drain  # noqa: F401
    except ImportError as error:
        return (
            f"{sys.executable} cannot import Arrow ({' '.join(str(error).split())}), so only what "
            "fits into the rings is kept: pip install 'sonde[tools]'"
        )
    return None


class Watched:
    """A live session: it drains the job's rings, and writes sensor rows into rings of its own."""

    def __init__(self, session: Session, counts: KillCounts, is_starter: bool = False) -> None:
        self.session, self.folder = session, session.folder
        self.end, self._heap = ProcessEnd(session, counts, is_starter), HeapWatch(session)
        self.drains: dict[str, Drain] = {}
        self._writers: dict[type, _core.Writer | None] = {}
        self._text: _core.Text | None = None
        self._snapshot_s = time.monotonic()
        self._listed_ns = 0  # when the folder had last changed, at its last listing
        self._ended: set[str] = set()  # runs that have ended, as the last scan saw them
        self._processed: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read the session's settings again, and its rank, which is archived with its rows."""
        self.session.refresh()
        values = self.session.read_config()
        self.archive = bool(values["archive"]) and find_archive_problem() is None
        self.is_shipped = self.archive and bool(values["archive.to"])
        self.agent = str(values["agent"])
        self.collector = bool(values["collector"])
        self.archive_every_s = float(values["archive.every"])
        self.host_every_s = float(values["host.every"])
        self.host_pid = self._find_pid(int(values["host.pid"]))
        self.snapshot_every_s = float(values["snapshot.every"])
        self.snapshot_keep = int(values["snapshot.keep"])
        self._heap.refresh(values)

    def _find_pid(self, wanted: int) -> int | None:
        if wanted == 0 or self.session.shares_pids():
            return self.session.pid if wanted < 0 else wanted
        return None  # here this number is another process's, or nobody's

    def has_adopted(self, parent: int) -> bool:
        """Return whether this job is our parent, and able to start a collector as it should be.

        Then the process that started us has ended, and this one adopts orphans: its os.wait()
        would wait for us for ever."""
        session = self.session
        return (
            session.pid == parent
            and self.collector
            and read_start_ticks(parent) == session.meta.start_ticks  # or it is another namespace's
        )

    def drain(self, now_s: float, *, ended: bool = False) -> int:
        """Archive the rows that are due; return how many bytes that took."""
        if not self.archive:
            return 0
        # Listing the folder at every tick would take as long as everything else.
        changed_ns = os.stat(self.folder).st_mtime_ns
        if changed_ns != self._listed_ns:
            from sonde.collector.drain import Drain

            for path in self.session.find_rings():
                if path not in self.drains:
                    self.drains[path] = Drain(self.session, path)
            # The kernel's stamps are coarse: another file may still get the same one.
            self._listed_ns = changed_ns if time.time_ns() - changed_ns > 10**8 else 0
        return sum(drain.run(now_s, self.archive_every_s, ended) for drain in self.drains.values())

    def snapshot(self, now_s: float, *, ended: bool = False) -> None:
        """Write a snapshot if one is due; at the end, a last one if there were any."""
        if ended:
            wanted = self.snapshot_every_s > 0 or os.path.isdir(self.session.path(snapshots.FOLDER))
        else:
            wanted = 0 < self.snapshot_every_s <= now_s - self._snapshot_s
        if wanted and stack_table.has_nodes(self.session):
            self._snapshot_s = now_s
            snapshots.take(self.session, keep=self.snapshot_keep)

    def seal(self) -> None:
        """Write how the session ended, and remove what is archived."""
        if self.archive:
            from sonde.collector.drain import seal

            seal(self.session)

    def process_runs(self, end_s: float) -> None:
        """Compute the results of runs that have ended, until `end_s`.

        A job may make many runs, and the stack sums of one take as much space as all stacks."""
        for name in runs.list_names(self.session):
            if name in self._processed or time.monotonic() > end_s:
                continue
            try:
                run = Run(self.session, name)
            except (Damaged, NoSession):
                continue
            state = run.state
            if state == PROCESSING and name in self._ended:
                run.process()
            if state == PROCESSING:
                self._ended.add(name)  # processed next time: its state may still be being written
            elif state in FINAL:
                self._processed.add(name)

    def write(self, row: type, values: tuple[object, ...]) -> None:
        """Write a sensor's row into this session."""
        if row not in self._writers:
            self._writers[row] = self._open(row)
        writer = self._writers[row]
        if writer is not None:
            writer(*values)
        if row is Process:
            self._heap.note(values)

    def _open(self, row: type) -> _core.Writer | None:
        table = make_schema(row, name_row(row), getattr(row, "SCOPE", "process"))
        if self._text is None:
            self._text = texts.open_text(self.session.folder)
        path = self.session.path(table.table + ring.SUFFIX)
        if os.path.exists(path):
            known = [(field.name, field.kind) for field in ring.Ring(path).schema.fields]
            if known != [(field.name, field.kind) for field in table.fields]:
                return None  # sonde was updated while the job ran, and the columns have changed
            memory = ring.map_file(path, writable=True)
            if row is not SourceLog:
                _core.ring_free_slots(memory)  # an earlier collector may have died while writing
        else:
            memory = ring.create_ring(self.session.folder, table, getattr(row, "RING_BYTES", 2**20))
        # Strict: a sensor row that does not fit is a bug.
        writer = _core.Writer(table.kinds, table.optional, table.timed, True)
        # The state of a sensor is recorded even while the recording is paused.
        page = None if row is SourceLog else self.session.map_control()
        writer.attach(memory, self._text, page)
        return writer


class Collector:
    """The loop over all sessions of a root."""

    def __init__(self, root: str, starter: str = "", lock: int | None = None) -> None:
        self.root, self._starter, self._lock = root, starter, lock
        self.watched: dict[str, Watched] = {}
        self._sensors = Sensors()
        self._counts = KillCounts(Reader(), count_starts(root))
        self._leaving: list[ProcessEnd] = []  # sealed, but their processes are still ending
        self._crashes = CrashProcesses[Watched]()  # not sealed before their stacks are unwound
        self._done: set[str] = set()  # sealed, of another machine, or unreadable
        self._retention = Retention(root, environ.load_settings({})[0])
        self._companions = Companions(root)
        self._archived_bytes = 0  # in this round
        self._listed_ns = 0  # when the root had last changed, at its last listing
        self._drained_s = self._scanned_s = float("-inf")
        self._busy_s = self._begun_s = time.monotonic()
        self._has_worked = self._is_proven = False
        self.leaving = False

    def run(self) -> None:
        """Run until there has been nothing to watch for LINGER_S."""
        try:
            self._loop()
        finally:
            self._sensors.close()
            self._companions.end()
            self._crashes.end()

    def _loop(self) -> None:
        while not self.leaving:
            now_s = time.monotonic()
            self.step(now_s)
            if not self._has_worked:
                self._has_worked = True
                _mark_start(self.root)
            if not self._is_proven and now_s - self._begun_s > PROVEN_S:
                self._prove()
            if self.watched or self._leaving or self._crashes.is_busy or self._companions.is_busy:
                self._busy_s = now_s
            elif now_s - self._busy_s > LINGER_S:
                return
            due_s = min(self._drained_s + TICK_S, self._sensors.find_due(self.watched.values()))
            time.sleep(max(0.001, due_s - time.monotonic()))

    def _prove(self) -> None:
        """Note that this collector lives: the starts before it need no longer be counted."""
        self._is_proven = True
        self._counts.starts = 0
        for one in self.watched.values():
            one.end.refresh()  # what it keeps of the starts must not be of a file that is gone
        files.remove_quietly(collector_starts(self.root))

    def step(self, now_s: float) -> None:
        """Do one round: read sensors, find sessions, drain, seal, retain, each when it is due."""
        # This comes first: the rest may take long, and a reading should be taken when it is due.
        self._sensors.measure(list(self.watched.values()), now_s, self._attempt)
        if now_s - self._drained_s < TICK_S - 0.01:
            return
        self._drained_s = now_s
        if self._lock is not None and is_replaced(self._lock, self.root):
            self.leaving = True  # two collectors would archive and seal the same sessions
            return
        if now_s - self._scanned_s >= 1.0:
            self._scanned_s = now_s
            self._scan()
        elif self._listed_ns != os.stat(self.root).st_mtime_ns:
            self._find_new()  # soon: one that ends at once is seen to end
        for folder, one in list(self.watched.items()):
            with self._attempt(folder):
                self._archived_bytes += one.drain(now_s)
                one.snapshot(now_s)
        archived_bytes, self._archived_bytes = self._archived_bytes, 0
        with self._attempt(self.root):
            self._retention.run(now_s, archived_bytes)

    def _find_new(self) -> None:
        self._listed_ns = os.stat(self.root).st_mtime_ns
        folders = list_folders(self.root)
        self._done &= set(folders)
        for folder in folders:
            if folder not in self.watched and folder not in self._done:
                with self._attempt(folder):
                    session = Session(folder)
                    if _is_mine(session):
                        self.watched[folder] = Watched(
                            session, self._counts, folder == self._starter
                        )
                    else:
                        self._done.add(folder)

    def _scan(self) -> None:
        self._counts.begin()
        self._find_new()
        self._counts.note_killed([*self._leaving, *(one.end for one in self.watched.values())])
        self._counts.ours = 1 + self._companions.count() + self._crashes.count()
        self._await_ends()
        begin_s, sealing_s = time.monotonic(), 0.0
        for folder, one in list(self.watched.items()):
            with self._attempt(folder):
                if sealing_s >= SEAL_S and not one.session.is_alive():
                    continue  # live sessions must not wait for many ended ones: the next scan's
                one.refresh()
                one.process_runs(begin_s + SEAL_S)
                if not one.session.is_alive():
                    now_s = time.monotonic()
                    self._archived_bytes += one.drain(now_s, ended=True)
                    one.snapshot(now_s, ended=True)
                    runs.process_all(one.session)  # while its texts still exist
                    if not one.end.write():
                        self._leaving.append(one.end)
                    if not self._crashes.take(one):
                        one.seal()
                    del self.watched[folder]
                    self._done.add(folder)
                    sealing_s += time.monotonic() - now_s
                else:
                    one.end.refresh()
        for one in self._crashes.give_back():
            with self._attempt(one.folder):
                one.drain(time.monotonic(), ended=True)  # what was said of it just now
                one.seal()
        with self._attempt(self.root):
            self._companions.keep(self.watched.values(), begin_s)
        remove_leftovers(self.root)
        self.leaving |= any(one.has_adopted(os.getppid()) for one in self.watched.values())

    def _await_ends(self) -> None:
        """Write how processes ended whose recordings had ended before them."""
        leaving, self._leaving = self._leaving, []
        for end in leaving:
            with self._attempt(end.folder):
                if not end.write():
                    self._leaving.append(end)

    @contextmanager
    def _attempt(self, folder: str) -> Iterator[None]:
        """Keep a failure of one session from stopping the work for the others."""
        try:
            yield
        except OSError:
            # A full disk: try again in the next round. A folder that is gone: forget it.
            self._done.discard(folder)  # it is new again, if it was thought to be done
            if not os.path.isdir(folder):
                self.watched.pop(folder, None)
        except Exception as error:  # it cannot be read; opening it shows the user why
            self.watched.pop(folder, None)
            self._done.add(folder)
            self._log(f"{folder}: {type(error).__name__}: {error}")

    def _log(self, line: str) -> None:
        path = os.path.join(self.root, ".collector.log")
        if not os.path.exists(path) or os.stat(path).st_size < 256 * 1024:
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")


def _is_mine(session: Session) -> bool:
    """Return whether a session was recorded on this machine and is not sealed yet.

    On a shared file system another machine may have the same name: its live sessions have another
    boot id and a collector of their own."""
    here = session.host == os.uname().nodename
    return here and session.read_sealed() is None and (session.is_here() or not session.is_alive())


def _mark_start(root: str) -> None:
    """Note that this collector has done its first round: see kernel/collector_lock.c."""
    # Nobody may count, as when it was started by hand.
    with suppress(OSError), open(collector_starts(root), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b".")


def raise_file_limit() -> None:
    """Allow as many open files as possible: files of /proc stay open between two readings."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Run as `collector FOLDER ROOT`; the folder is of the session whose process started us."""
    folder, root = sys.argv[1:]
    lock = take_lock(root)
    if lock is None:
        return
    # The file holds our pid while we run, and is empty after an orderly end.
    write_lock(lock, find_archive_problem())
    files.remove_quietly(collector_report(root))
    raise_file_limit()
    collector = Collector(root, folder, lock)

    def leave(_signal: int, _frame: object) -> None:
        collector.leaving = True

    gc.freeze()  # imported modules stay, so garbage collections need not visit them
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    collector.run()
    files.remove_quietly(collector_starts(root))
    os.truncate(lock, 0)


if __name__ == "__main__":
    main()
