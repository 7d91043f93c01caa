"""The sums of python.stack_sample in steps of time, so that a refresh reads only new rows.

The sums of a window are what this SQL gives, with `since_ns` a whole number of steps:

    SELECT thread, stack, gil, idle OR COALESCE(call, '') = 'time.sleep' AS idle,
           SUM(samples), SUM(wall_ns), SUM(cpu_ns)
    FROM python.stack_sample WHERE t_ns >= since_ns GROUP BY ALL

On a busy machine a sleeper may be ready to run when it is looked at: it counts as idle, as in
analysis/profile.py.

The SQL itself takes a tenth of a second of CPU time, too much for every second. It is used only
for rows that are no longer in the ring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sonde.session import Session, stack_table, texts
from sonde.session.ring import SUFFIX, Ring
from sonde.store.tail import RingTail

STEP_NS = 100_000_000
_CHUNK = 2**14  # rows that are read at a time, going back
_SLACK_NS = 2 * 10**9  # rows about idle threads are written up to a second late

Key = tuple[int, int, int, int]  # thread, stack, gil, idle
Sums = dict[Key, tuple[int, int, int]]  # samples, wall_ns, cpu_ns
Ask = Callable[[str], list[dict[str, Any]]]

_SLEEP = "time.sleep"
IS_IDLE = f"(idle OR COALESCE(call, '') = '{_SLEEP}')"
_STEPS_SQL = f"""
    SELECT t_ns // {{step}} AS step, thread, stack, gil::INT AS gil, {IS_IDLE}::INT AS idle,
           SUM(samples)::BIGINT AS samples, SUM(wall_ns)::BIGINT AS wall_ns,
           SUM(cpu_ns)::BIGINT AS cpu_ns, MAX(t_ns) AS t_ns
    FROM python.stack_sample WHERE t_ns >= {{since}} AND t_ns < {{until}} GROUP BY ALL"""
# The same words for all processes, so that one query answers for hundreds of them.
_LAST_NS = 305 * 10**9  # the longest window, and a little
_LAST_SQL = f"""
    SELECT t_ns // {STEP_NS} AS step, thread, stack, gil::INT AS gil, {IS_IDLE}::INT AS idle,
           SUM(samples)::BIGINT AS samples, SUM(wall_ns)::BIGINT AS wall_ns,
           SUM(cpu_ns)::BIGINT AS cpu_ns, MAX(t_ns) AS t_ns
    FROM (SELECT *, MAX(t_ns) OVER (PARTITION BY host, pid) AS last_ns FROM python.stack_sample)
    WHERE t_ns >= last_ns - {_LAST_NS} GROUP BY ALL"""
_NEWEST_SQL = f"""
    SELECT thread, MAX(t_ns) AS t_ns, ARG_MAX(stack, t_ns) AS stack,
           ARG_MAX(gil, t_ns)::INT AS gil, ARG_MAX({IS_IDLE}, t_ns)::INT AS idle
    FROM python.stack_sample GROUP BY ALL"""


class NewestSample(NamedTuple):
    """The newest sample of a thread."""

    t_ns: int
    stack: int
    gil: int
    idle: int


class Samples:
    """The samples of one process; `ask` runs SQL on its session, `find` SQL that is asked of many
    sessions in the same words."""

    def __init__(self, session: Session, ask: Ask, find: Ask | None = None) -> None:
        self._ask, self._find = ask, find
        self._tail: RingTail | None = None
        self._folder, self._sleeps = session.folder, {-1: 0}  # texts of calls: is it time.sleep?
        every_s = float(session.read_config()["stack.every"])
        self._slack_ns = max(_SLACK_NS, round(2e9 * every_s))
        try:
            self._ring: Ring | None = Ring(session.path(stack_table.SAMPLES + SUFFIX))
        except FileNotFoundError:  # nothing was ever sampled, or all is in the archive
            self._ring = None
        self._reset()

    def _reset(self) -> None:
        self.newest: dict[int, NewestSample] = {}
        self._steps: dict[int, Sums] = {}
        self._window: Sums | None = None
        self._window_from = 0  # the first step of the window
        # The tickets that were read are those from `_first` up to the tail's next one.
        self._first, self._tail = 0, None
        if self._ring is not None:
            self._first = self._ring.find_settled(max(0, self._ring.head - 1))
            self._tail = RingTail(self._ring, self._first)
        self._from: int | None = None  # all rows of this step and of later steps are here
        if self._read_back():  # to know the newest sample
            return
        for row in (self._find or self._ask)(_NEWEST_SQL) if self._ring is None else ():
            seen = NewestSample(row["t_ns"], row["stack"], row["gil"], row["idle"])
            self.newest[row["thread"]] = seen

    @property
    def newest_ns(self) -> int | None:
        """The time of the newest sample."""
        return max((seen.t_ns for seen in self.newest.values()), default=None)

    @property
    def oldest_ns(self) -> int | None:
        """The start of the oldest step that has a sample."""
        return min(self._steps) * STEP_NS if self._steps else None

    def advance(self) -> None:
        """Add the rows that were written since the last time."""
        if self._ring is None or self._tail is None:
            return
        if self._ring.head - self._tail.next_ticket > 4 * _CHUNK:
            self._reset()  # going back from the end is quicker than catching up
            return
        batch = self._tail.read()
        if batch.lost:
            self._reset()
            return
        self._take(stack_table.read_columns(self._ring, batch))

    def add_up(self, since_ns: int) -> Sums:
        """Return the sums of a window that begins at `since_ns`, rounded down to a whole step.

        They belong to this object: the next call changes them."""
        since = since_ns // STEP_NS
        self.reach(since_ns)
        if self._window is None or since < self._window_from:
            self._window = {}
            for step, sums in self._steps.items():
                if step >= since:
                    _merge(self._window, sums.items())
        else:
            for step in [step for step in self._steps if self._window_from <= step < since]:
                _take_away(self._window, self._steps[step])
        self._window_from = since
        return self._window

    def forget(self, before_ns: int) -> None:
        """Drop what no window reaches any more."""
        before = min(before_ns // STEP_NS, self._window_from)
        for step in [step for step in self._steps if step < before]:
            del self._steps[step]
        for thread in [t for t, seen in self.newest.items() if seen.t_ns < before * STEP_NS]:
            del self.newest[thread]
        self._from = None if self._from is None else max(self._from, before)

    def reach(self, since_ns: int) -> None:
        """Read all rows from the step of `since_ns` on that are kept anywhere."""
        since = since_ns // STEP_NS
        while self._from is None or since < self._from:
            if not self._read_back():
                self._load(since)
                return

    def _read_back(self) -> bool:
        """Read the chunk of the ring before the first one; return False if there is none."""
        if self._ring is None:
            return False
        oldest = max(0, self._ring.head - self._ring.capacity)
        if self._first == 0:
            self._from = 0
            return True
        if self._first <= oldest:
            return False
        begin = max(oldest, self._first - _CHUNK)
        batch = self._ring.read(begin, self._first)
        columns = stack_table.read_columns(self._ring, batch)
        self._take(columns)
        self._first = begin
        if batch.rows:
            self._from = (columns[0][0] + self._slack_ns) // STEP_NS + 1
        return True

    def _load(self, since: int) -> None:
        """Read from the archive what is no longer in the ring."""
        until = self._from
        if until is None:  # no ring, or one so short that its rows are not yet in order
            until = (self.newest_ns or 0) // STEP_NS + 1
        self._steps = {step: sums for step, sums in self._steps.items() if step >= until}
        for row in self._list_steps(since, until):
            key = row["thread"], row["stack"], row["gil"], row["idle"]
            sums = self._steps.setdefault(row["step"], {})
            sums[key] = row["samples"], row["wall_ns"], row["cpu_ns"]
            self._note(
                row["thread"], NewestSample(row["t_ns"], row["stack"], row["gil"], row["idle"])
            )
        self._from, self._window = since, None

    def _list_steps(self, since: int, until: int) -> list[dict[str, Any]]:
        first_ns, last_ns = since * STEP_NS, until * STEP_NS
        if self._find is not None and first_ns >= (self.newest_ns or 0) - _LAST_NS:
            return [row for row in self._find(_LAST_SQL) if since <= row["step"] < until]
        return self._ask(_STEPS_SQL.format(step=STEP_NS, since=first_ns, until=last_ns))

    def _note(self, thread: int, seen: NewestSample) -> None:
        if thread not in self.newest or self.newest[thread].t_ns <= seen.t_ns:
            self.newest[thread] = seen

    def _find_sleepers(self, columns: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return the calls of some rows, after looking up which of them is a sleep."""
        names = [] if self._ring is None else [field.name for field in self._ring.schema.fields]
        if "call" not in names:
            return [-1] * len(columns[0])
        calls = columns[names.index("call")]
        if unknown := set(calls) - self._sleeps.keys():
            known = texts.read_texts(self._folder)
            for call in unknown:
                self._sleeps[call] = int(0 <= call < len(known) and known[call] == _SLEEP)
        return calls

    def _take(self, columns: Sequence[Sequence[int]]) -> None:
        added: dict[int, dict[Key, list[int]]] = {}
        newest: dict[int, tuple[int, int, int, int]] = {}
        calls = self._find_sleepers(columns)
        # Newer recordings have more columns.
        for t_ns, thread, stack, samples, wall_ns, cpu_ns, gil, rests, call in zip(
            *columns[:8], calls, strict=True
        ):
            idle = rests or self._sleeps[call]
            sums = added.setdefault(t_ns // STEP_NS, {})
            sum_ = sums.get((thread, stack, gil, idle))
            if sum_ is None:
                sums[thread, stack, gil, idle] = [samples, wall_ns, cpu_ns]
            else:
                sum_[0] += samples
                sum_[1] += wall_ns
                sum_[2] += cpu_ns
            if thread not in newest or newest[thread][0] <= t_ns:
                newest[thread] = (t_ns, stack, gil, idle)
        for thread, seen in newest.items():
            self._note(thread, NewestSample(*seen))
        for step, found in added.items():
            items = [(key, (n, wall, cpu)) for key, (n, wall, cpu) in found.items()]
            _merge(self._steps.setdefault(step, {}), items)
            if self._window is not None and step >= self._window_from:
                _merge(self._window, items)


def _merge(into: Sums, items: Iterable[tuple[Key, tuple[int, int, int]]]) -> None:
    for key, (samples, wall_ns, cpu_ns) in items:
        known = into.get(key)
        if known is None:
            into[key] = samples, wall_ns, cpu_ns
        else:
            into[key] = known[0] + samples, known[1] + wall_ns, known[2] + cpu_ns


def _take_away(from_: Sums, sums: Sums) -> None:
    for key, (samples, wall_ns, cpu_ns) in sums.items():
        known = from_[key]
        left = known[0] - samples, known[1] - wall_ns, known[2] - cpu_ns
        if any(left):  # a row may have CPU time without a sample: what a thread used until it ended
            from_[key] = left
        else:
            del from_[key]
