"""The newest readings, straight from the rings: what reading_sql.py asks in SQL, as it comes.

A query takes a tenth of a second of CPU time, too much for ten readings a second. A test checks
that both give the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sonde.errors import Damaged
from sonde.monitor.scope import GpuReading, Reading, Scope
from sonde.session import Session
from sonde.session import texts as intern
from sonde.session.ring import SUFFIX, Ring
from sonde.store.tail import RingTail

Row = dict[str, float | None]
_TABLES = ("cpu", "memory", "cgroup", "network", "gpu", "gpu_process")


class ReadingsReader:
    """Reads the rings of one session, each row once."""

    def __init__(self, session: Session, scope: Scope, every_ns: int) -> None:
        self._session, self.scope, self._half_ns = session, scope, every_ns // 2
        self._tails: dict[str, RingTail] = {}
        tables = (*_TABLES, "process" if scope.is_tree else "disk")
        self._waiting: dict[str, list[Row]] = {name: [] for name in tables}
        self._kinds: dict[float, bool] = {}
        self.newest_ns = 0  # time of the last reading, complete or not
        self.mine: set[int] = set()  # GPUs on which a watched process has memory

    def read(self, now_ns: int) -> Iterator[Reading]:
        """Yield the readings that are complete by now, oldest first.

        The rows of a reading are all written within half a period of its first row."""
        for name in self._waiting:
            self._waiting[name] += self._read_new(name)
        for row in self._waiting["cpu"][-1:]:
            self.newest_ns = int(row["t_ns"] or 0)
        while self._waiting["cpu"]:
            t_ns = int(self._waiting["cpu"][0]["t_ns"] or 0)
            if now_ns <= t_ns + self._half_ns:
                return
            yield self._make(t_ns, {name: self._take(name, t_ns) for name in self._waiting})

    def _read_new(self, name: str) -> Iterator[Row]:
        try:
            if name not in self._tails:
                ring = Ring(self._session.path(f"system.{name}{SUFFIX}"))
                self._tails[name] = RingTail(ring)
        except FileNotFoundError:
            return  # no such row yet
        tail = self._tails[name]
        names = [field.name for field in tail.ring.schema.fields]
        for values in zip(*tail.read_columns(), strict=True):
            # No number here can be below zero, so -1 is NULL.
            yield {key: None if one == -1 else one for key, one in zip(names, values, strict=True)}

    def _take(self, name: str, t_ns: int) -> list[Row]:
        """Take the rows of a reading: those up to half a period after it."""
        rows, limit_ns = self._waiting[name], t_ns + self._half_ns
        if name == "cpu":
            self._waiting[name] = rows[1:]
            return rows[:1]
        self._waiting[name] = [row for row in rows if (row["t_ns"] or 0) > limit_ns]
        return [row for row in rows if (row["t_ns"] or 0) <= limit_ns]

    def _make(self, t_ns: int, rows: dict[str, list[Row]]) -> Reading:
        (cpu,) = rows["cpu"]
        interval_ns = int(cpu["interval_ns"] or 1)
        if self.scope.is_tree:
            found = self._sum_tree(rows["process"], interval_ns)
        else:
            found = _sum_all(cpu, rows, interval_ns)
        most_pct = 100 * (cpu["cores"] or 1)
        wires = [row for row in rows["network"] if not self._is_loopback(row.get("kind"))]
        self.mine |= {int(row["gpu"] or 0) for row in rows["gpu_process"] if row["process"]}
        amounts = (found[2], found[3], _sum(wires, "received_bytes"), _sum(wires, "sent_bytes"))
        read, written, received, sent = (
            None if amount is None else amount * 1e9 / interval_ns for amount in amounts
        )
        return Reading(
            t_ns, interval_ns, None if found[0] is None else min(found[0], most_pct), found[1],
            _find_total(rows), read, written, received, sent,
            {int(row["gpu"] or 0): _make_gpu(row) for row in rows["gpu"]},
        )  # fmt: skip

    def _sum_tree(self, rows: list[Row], interval_ns: int) -> tuple[float | None, ...]:
        mine = [row for row in rows if (row["depth"] or 0) >= self.scope.depth]
        left = [row for row in rows if row not in mine and (row["t_ns"] or 0) > self.scope.ended_ns]
        amounts = (_sum([*mine, *left], name) for name in ("read_bytes", "written_bytes"))
        return _find_cpu(mine, interval_ns), _sum(mine, "rss_bytes"), *amounts

    def _is_loopback(self, kind: float | None) -> bool:
        if kind is None:
            return False
        if kind not in self._kinds:
            try:
                texts = intern.read_texts(self._session.folder)
            except Damaged:
                return False
            self._kinds = {at: text == "loopback" for at, text in enumerate(texts)}
        return self._kinds.get(kind, False)


def _sum(rows: Iterable[Row], name: str) -> float | None:
    """Add up as SQL does: NULL is ignored, and the sum of no rows is NULL."""
    found = [value for row in rows if (value := row.get(name)) is not None]
    return sum(found) if found else None


def _find_cpu(rows: list[Row], interval_ns: int) -> float | None:
    """Return CPU time in percent of one processor; a new process has a shorter interval."""
    times = [
        ((row["user_pct"] or 0) + (row["system_pct"] or 0)) * (row["interval_ns"] or 0)
        for row in rows
        if row["user_pct"] is not None
    ]
    if not times:
        return None
    return sum(times) / max(interval_ns, *(row["interval_ns"] or 0 for row in rows))


def _sum_all(cpu: Row, rows: dict[str, list[Row]], interval_ns: int) -> tuple[float | None, ...]:
    """Return the container's own numbers where it has them, else the machine's."""
    group = rows["cgroup"]
    machine = (
        (cpu["busy_pct"] or 0) * (cpu["cores"] or 0),
        _sum(rows["memory"][-1:], "used_bytes"),
        _sum(rows["disk"], "read_bytes"),
        _sum(rows["disk"], "written_bytes"),
    )
    own = (
        _find_cpu(group, interval_ns),
        _sum(group[-1:], "memory_bytes"),
        _sum(group, "read_bytes"),
        _sum(group, "written_bytes"),
    )
    return tuple(one if one is not None else other for one, other in zip(own, machine, strict=True))


def _find_total(rows: dict[str, list[Row]]) -> float | None:
    limits = (_sum(rows["cgroup"][-1:], "memory_limit_bytes"),
              _sum(rows["memory"][-1:], "total_bytes"))  # fmt: skip
    return min((limit for limit in limits if limit is not None), default=None)


def _make_gpu(row: Row) -> GpuReading:
    return GpuReading(row["util_pct"], row["memory_util_pct"], row["memory_used_bytes"],
               row["memory_total_bytes"])  # fmt: skip
