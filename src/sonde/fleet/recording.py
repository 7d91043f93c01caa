"""A live job on many hosts as a recording: its agents are asked whenever it is queried."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa

from sonde.errors import Error
from sonde.fleet.cluster import Gathered, ask_all
from sonde.fleet.hosts import Cluster
from sonde.fleet.query import join_answers, query_cluster
from sonde.session.schema import Schema
from sonde.store import catalog
from sonde.store.engine import PIECE_ROWS
from sonde.store.recording import MEMORY, Recording
from sonde.store.rows import widen
from sonde.store.shared_session import DISTANT_COLUMNS, DistantSession

_SESSIONS = f"SELECT {', '.join(DISTANT_COLUMNS)} FROM sonde.session ORDER BY start_wall_ns"
_HELLOS = 4  # the fastest of them tells most about the clock


class ClusterRecording(Recording):
    """What the recordings of all hosts of a cluster have in common with one: SQL."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self.missing = Gathered()
        request = {"request": "query", "sql": _SESSIONS}
        found = self._note(ask_all(cluster, request, timeout_s, hellos=_HELLOS))
        super().__init__(list(_list_sessions(found)))

    def _note(self, found: Gathered) -> Gathered:
        """Remember who did not answer; raise an error if nobody did."""
        found.require_some(self._cluster.target)
        found.failures.update(self.missing.failures)
        self.missing = found
        return found

    def tables(self) -> list[Schema]:
        """Return the tables that every host has; one of the program's own can be queried, too."""
        schemas = [widen(schema) for schema in catalog.list_recorded()]
        return sorted(
            [*schemas, *(view.schema for view in catalog.list_views())], key=lambda s: s.table
        )

    def query(self, sql: str, *, timeout_s: float | None = None, memory: str = MEMORY) -> pa.Table:
        """Run one SELECT over the rows of all hosts."""
        rows, found = query_cluster(self._cluster, sql, timeout_s or self._timeout_s, memory)
        self._note(found)
        return rows

    def query_each(self, sql: str) -> pa.Table:
        """Have every host run one SELECT over its own rows, and return all answers."""
        request = {"request": "query", "sql": sql}
        return join_answers(self._note(ask_all(self._cluster, request, self._timeout_s)))

    def stream(
        self,
        sql: str,
        *,
        given: Mapping[str, pa.Table] | None = None,
        timeout_s: float | None = None,
        memory: str = MEMORY,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one SELECT in pieces; all of them are here before the first."""
        rows, found = query_cluster(self._cluster, sql, timeout_s or self._timeout_s, memory, given)
        self._note(found)
        yield from rows.to_batches(PIECE_ROWS)

    def freeze(self, text: str = "") -> ClusterRecording:  # type: ignore[override]  # noqa: ARG002
        """Return the same: its hosts do not stand still."""
        return self

    def __enter__(self) -> ClusterRecording:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _list_sessions(found: Gathered) -> Iterator[DistantSession]:
    for host, table in sorted(found.tables.items()):
        clock = found.clocks[host]
        for row in table.to_pylist():
            try:
                session = DistantSession(f"@{host}", row, time.time_ns() + clock.offset_ns)
            except (Error, ValueError, TypeError, KeyError):
                continue  # a newer sonde; or an agent that is none
            session.clock = clock.offset_ns, clock.error_ns
            yield session
