"""A recorded process as `sonde top` needs it: its identity, its state and its stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sonde import _core
from sonde.errors import Error
from sonde.session import Session, stack_table
from sonde.session.missing_names import describe_missing_names
from sonde.session.ring import SUFFIX, Ring
from sonde.tui.samples import IS_IDLE, STEP_NS, Samples, Sums
from sonde.tui.shares import Load, Weighed, list_loads, weigh, weigh_all
from sonde.tui.tree import StackTree, make_tree
from sonde.words import shorten_command

if TYPE_CHECKING:
    from sonde.store.held import HeldRecording

LONGEST_S = 300.0
_NOW_S = 5.0
_RECENT_NS = 10 * 10**9  # older numbers say nothing about a live process
_TREE_SQL = "SELECT * FROM python.stack"
_WORKING_SQL = f"""
SELECT stack, SUM(wall_ns)::BIGINT AS wall_ns
FROM python.stack_sample WHERE NOT {IS_IDLE} AND t_ns < {{until}} GROUP BY stack"""
_THREADS_SQL = "SELECT thread, name, state, t_ns FROM python.thread ORDER BY t_ns"
_LAST_SQL = """
SELECT * FROM {table}
QUALIFY ROW_NUMBER() OVER (PARTITION BY host, pid ORDER BY t_ns DESC) <= {count} ORDER BY t_ns"""
_WEIGHTS = {"wall": "wall_ns", "cpu": "cpu_ns", "gil": "gil_ns"}


class EndedProcesses:
    """The archives of processes that have ended, asked once for all of them: a job may have
    hundreds, and to ask each takes far longer than to answer."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        sealed = [session for session in sessions if session.read_sealed() is not None]
        counts = Counter((session.host, session.pid) for session in sealed)
        self._sessions = {
            session.folder: session for session in sealed
            if counts[session.host, session.pid] == 1
        }  # fmt: skip
        self._answers: dict[str, dict[tuple[str, int], list[dict[str, Any]]]] = {}

    def has(self, session: Session) -> bool:
        """Tell whether this one can be asked here."""
        return session.folder in self._sessions

    @cached_property
    def _held(self) -> HeldRecording:
        from sonde.store.held import HeldRecording

        return HeldRecording(list(self._sessions.values()))

    def find(self, session: Session, sql: str) -> list[dict[str, Any]]:
        """Return the rows of one session; the SQL is run once, when the first one is asked for."""
        if sql not in self._answers:
            whose = sql if "SELECT *" in sql[:12] else sql.replace("SELECT", "SELECT host, pid,", 1)
            rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
            for row in self._held.query(whose).to_pylist():
                rows.setdefault((row["host"], row["pid"]), []).append(row)
            self._answers[sql] = rows
        return self._answers[sql].get((session.host, session.pid), [])


class TopProcess:
    """One session, live or ended. Reading it never waits for the process."""

    def __init__(self, session: Session, ended: EndedProcesses | None = None) -> None:
        self.session, self._ended = session, ended
        self.state = "unknown"
        self.now_ns = _core.clock_ns()
        self.tree = StackTree()
        self._totals: dict[str, list[int]] = {}
        self._is_archived = False  # _totals will not change any more
        self._working: tuple[int, dict[int, int]] = (-1, {})  # up to when; wall_ns by stack
        self._lost: set[int] = set()  # stacks without a node
        self._rings: dict[str, Ring] = {}
        self._threads: tuple[int, dict[int, str], dict[int, int]] = (-1, {}, {})
        self.refresh()

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """Run SQL on this session. The first time is slow: it loads DuckDB."""
        from sonde.store.recording import Recording

        rows: list[dict[str, Any]] = Recording([self.session]).query(sql).to_pylist()
        return rows

    def _find(self, sql: str) -> list[dict[str, Any]]:
        """Run SQL that has the same words for every process."""
        if self._ended is not None and self._ended.has(self.session):
            return self._ended.find(self.session, sql)
        return self.ask(sql)

    @cached_property
    def samples(self) -> Samples:
        """Its samples, read when they are first needed."""
        is_shared = self._ended is not None and self._ended.has(self.session)
        return Samples(self.session, self.ask, self._find if is_shared else None)

    @property
    def is_live(self) -> bool:
        """Whether the process still runs."""
        return self.state in ("running", "paused")

    def refresh(self) -> None:
        """Read whether it is alive, and what is new."""
        was_live = self.is_live or self.state == "unknown"
        self.state = self.session.find_state()
        if self.state == "running" and not self.session.read_control()["on"]:
            self.state = "paused"
        if self.is_live:
            self.now_ns = _core.clock_ns()
        if was_live and "samples" in self.__dict__:
            self.samples.advance()

    # ---- its stacks -------------------------------------------------------------------------

    @property
    def is_short(self) -> bool:
        """Whether all its samples are at hand, which tell idle time apart; the sums do not."""
        return self.age_s <= LONGEST_S

    def find_since(self, window_s: float | None) -> int:
        """Return where a window begins; it ends now, or at the last sample of an ended process."""
        if window_s is None:
            return self.start_ns
        until = self.now_ns if self.is_live else self.samples.newest_ns or self.now_ns
        return max(self.start_ns, until - round(window_s * 1e9)) // STEP_NS * STEP_NS

    def find_span(self, window_s: float | None) -> int:
        """Return the length of a window in nanoseconds; at least 1."""
        until = self.now_ns if self.is_live else self.samples.newest_ns or self.now_ns
        return max(1, until - self.find_since(window_s))

    @property
    def start_ns(self) -> int:
        """When the recording began, on the clock of t_ns."""
        return self.session.start_wall_ns - self.session.wall_offset_ns

    def add_up(self, window_s: float) -> Sums:
        """Return the sums of a window, after adding its stacks to the tree."""
        return self._add_up(self.find_since(window_s))

    def _add_up(self, since_ns: int) -> Sums:
        # Rows of idle threads are written once a second: their newest stacks need a few seconds.
        self.samples.reach(self.find_since(_NOW_S))
        sums = self.samples.add_up(since_ns)
        self.samples.forget(self.find_since(LONGEST_S))
        stacks_seen = {key[1] for key in sums} | {
            seen.stack for seen in self.samples.newest.values()
        }
        missing = stacks_seen - self.tree.places.keys() - self._lost
        if missing:
            self._read_nodes()
            self._lost |= missing - self.tree.places.keys()
        return sums

    def weigh(
        self, window_s: float | None, weight: str, *, idle: bool, thread: int | None = None
    ) -> Weighed:
        """Return the tree with the weight of a window; None is since the start."""
        if window_s is None and weight == "wall" and not idle and self.is_short:
            window_s = LONGEST_S
        if window_s is not None:
            sums = self.add_up(window_s)
            return weigh(self.tree, sums, weight, idle=idle, thread=thread)
        self._read_nodes()
        if weight == "wall" and not idle:
            try:
                return self._weigh_working()
            except ImportError:  # without SQL, only what the sums say
                pass
        return weigh_all(self.tree, self._totals["stack"], self._totals[_WEIGHTS[weight]])

    def _weigh_working(self) -> Weighed:
        """Return the tree with the working time since the start. The sums of python.stack do not
        tell it apart; SQL does, but takes long: it is asked for what no window reaches any more."""
        until_ns, _ = self._working
        if until_ns < self.find_since(LONGEST_S):
            until_ns = self.find_since(_NOW_S)
            rows = self.ask(_WORKING_SQL.format(until=until_ns))
            self._working = until_ns, {row["stack"]: row["wall_ns"] for row in rows}
        sums = dict(self._working[1])
        for (_thread, stack, _gil, is_idle), (_samples, wall_ns, _cpu) in self._add_up(
            until_ns
        ).items():
            if not is_idle:
                sums[stack] = sums.get(stack, 0) + wall_ns
        return weigh_all(self.tree, list(sums), list(sums.values()))

    def _read_nodes(self) -> None:
        try:
            nodes = stack_table.read_nodes(self.session)
        except FileNotFoundError:
            if not self._is_archived:  # the archive does not change any more
                self._keep_rows(self._find(_TREE_SQL))
            return
        if not self.tree.grow(nodes):
            self.tree = make_tree(_describe_nodes(nodes))
        self._totals = {
            "stack": nodes.hashes, "wall_ns": nodes.wall_ns, "cpu_ns": nodes.cpu_ns,
            "gil_ns": nodes.gil_ns,
        }  # fmt: skip

    def _keep_rows(self, rows: Sequence[dict[str, Any]]) -> None:
        self.tree, self._is_archived = make_tree(rows), not self.is_live
        names = ("stack", *_WEIGHTS.values())
        self._totals = {name: [row[name] for row in rows] for name in names}

    def list_loads(self, window_s: float) -> list[Load]:
        """Return what its threads did in a window."""
        sums = self.add_up(window_s)
        names, ended = self._read_threads()
        return list_loads(self.tree, sums, self.samples.newest, names, ended)

    def count_threads(self) -> int:
        """Return how many Python threads have not ended."""
        ended, newest = self._read_threads()[1], self.samples.newest
        return sum(ended.get(thread, -1) < seen.t_ns for thread, seen in newest.items())

    def _read_threads(self) -> tuple[dict[int, str], dict[int, int]]:
        """Return the names of threads and the ends of those that ended; cached until rows come."""
        head, names, ended = self._threads
        source = self._find_ring(stack_table.THREADS)
        newest = source.head if source is not None else 0
        if newest != head:
            try:
                names, ended = stack_table.read_threads(self.session)
            except FileNotFoundError:  # they are in the archive by now
                rows = self._find(_THREADS_SQL)
                names = {row["thread"]: row["name"] for row in rows if row["name"] is not None}
                ended = {row["thread"]: row["t_ns"] for row in rows if row["state"] == "ended"}
        self._threads = (newest, names, ended)
        return names, ended

    # ---- its state --------------------------------------------------------------------------

    @property
    def command(self) -> str:
        """Its command line, without the interpreter."""
        return shorten_command(" ".join(self.session.meta.argv)) or "?"

    @property
    def folder(self) -> str | None:
        """Where it began: short names of files start there."""
        return self.session.meta.cwd

    @property
    def age_s(self) -> float:
        """For how long it has run, or ran."""
        until = self.now_ns if self.is_live else self.samples.newest_ns or self.start_ns
        return (until - self.start_ns) / 1e9

    @property
    def interval_s(self) -> float | None:
        """The time between two samples, as it is set now."""
        return float(self.session.read_config()["stack.every"])

    def read_usage(self) -> dict[str, float] | None:
        """Return the newest row of system.process about the process itself; None if the collector
        has taken no reading lately."""
        rows: list[dict[str, float]] = []
        for count in (1, 64, 4096):  # each reading has a row for every descendant as well
            found = self._read_last("system.process", count)
            # One that has ended, and that nobody has waited for yet, has no memory any more.
            rows = [row for row in found if not row.get("depth") and row["rss_bytes"]][-1:]
            if rows or len(found) < count:
                break
        stale = rows and self.is_live and self.now_ns - rows[0]["t_ns"] > _RECENT_NS
        return None if not rows or stale else rows[0]

    def find_cpu_pct(self, window_s: float) -> float | None:
        """SELECT AVG(user_pct + system_pct) FROM system.process WHERE depth = 0, of the window;
        None if the collector has taken no reading in it."""
        rows = [row for row in self._read_last("system.process", 4096) if not row.get("depth")]
        until = self.now_ns if self.is_live or not rows else rows[-1]["t_ns"]
        used = [row["user_pct"] + row["system_pct"] for row in rows
                if row["t_ns"] > until - window_s * 1e9]  # fmt: skip
        return fmean(used) if used else None

    def find_gil_pct(self, window_s: float | None) -> float:
        """SELECT 100 * SUM(wall_ns) FILTER (gil) / span FROM python.stack_sample, of the window;
        SELECT 100 * SUM(gil_ns) / span FROM python.stack since the start."""
        return 100 * self.weigh(window_s, "gil", idle=True).whole / self.find_span(window_s)

    def find_cost_pct(self) -> float | None:
        """Return the CPU time of sonde's thread between the last two rows of python.sampling."""
        rows = self._read_last("python.sampling", 2)
        if not rows:
            return None
        before = rows[-2] if len(rows) > 1 else {"t_ns": self.start_ns, "cpu_ns": 0}
        passed = rows[-1]["t_ns"] - before["t_ns"]
        return 100 * (rows[-1]["cpu_ns"] - before["cpu_ns"]) / passed if passed > 0 else None

    def list_misses(self) -> list[str]:
        """Return what sampling missed, in words, from the newest row of python.sampling."""
        rows = self._read_last("python.sampling", 1)
        return describe_misses(rows[0]) if rows else []

    def list_losses(self) -> list[str]:
        """Return what sonde.loss and sonde.source say, in words. Slow: it reads every file."""
        source = self.ask("SELECT state, detail FROM sonde.source WHERE source = 'stack'")
        lines = [
            f"stack sampling is {row['state']}" + (f" ({row['detail']})" if row["detail"] else "")
            for row in source
            if row["state"] != "on" or row["detail"]
        ]
        lines += describe_missing_names([self.session]).values()
        for row in self.ask("SELECT * FROM sonde.loss ORDER BY table_name"):
            names = ("dropped", "overwritten", "corrupt", "misfit", "text_lost")
            parts = [f"{row[name]:,} {name}" for name in names if row[name]]
            if parts:
                lines.append(f"{row['table_name']}: {', '.join(parts).replace('_', ' ')}")
        return lines

    def _read_last(self, table: str, count: int) -> list[dict[str, float]]:
        """Return the last rows of a table, oldest first."""
        source = self._find_ring(table)
        if source is None:
            if self.is_live:
                return []
            return self._find(_LAST_SQL.format(table=table, count=count))
        head = source.head
        columns = stack_table.read_columns(source, source.read(max(0, head - count), head))
        names = [field.name for field in source.schema.fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _find_ring(self, table: str) -> Ring | None:
        if table not in self._rings:
            try:
                self._rings[table] = Ring(self.session.path(table + SUFFIX))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return self._rings[table]


def describe_misses(row: dict[str, float]) -> list[str]:
    """Return the counters of python.sampling in words, except those that are zero."""
    counters = (
        (row["due"] - row["taken"], f"samples not taken in time: {{:,}} of {row['due']:,}"),
        (row["torn"], "stacks that changed while they were read: {:,}"),
        (row["cut"], "stacks cut at 512 frames: {:,}"),
        (row["skipped_interpreters"], "times that subinterpreters were left out: {:,}"),
    )
    return [words.format(count) for count, words in counters if count > 0]


def _describe_nodes(nodes: stack_table.Nodes) -> list[dict[str, Any]]:
    """Return nodes as rows of python.stack."""
    found = []
    for at in range(len(nodes)):
        frame, parent = nodes.frame(at), nodes.find_parent(at)
        found.append({
            "stack": nodes.hashes[at], "parent": None if parent < 0 else nodes.hashes[parent],
            "func": frame.func, "file": frame.file, "lineno": frame.line,
            "first_line": frame.first_line,
        })  # fmt: skip
    return found


def open_processes(sessions: Sequence[Session]) -> list[TopProcess]:
    """Open processes; those that run come first, then by rank, then who started others, then by
    pid: recordings of workers begin a moment after these, in any order."""
    found, ended = [], EndedProcesses(sessions if len(sessions) > 1 else ())
    for session in sessions:
        try:
            found.append(TopProcess(session, ended))
        except (Error, OSError):
            if len(sessions) == 1:
                raise
    parents = {session.meta.ppid for session in sessions}
    return sorted(
        found,
        key=lambda p: (
            not p.is_live,
            -1 if p.session.rank is None else p.session.rank,
            p.session.pid not in parents,
            p.session.pid,
        ),
    )
