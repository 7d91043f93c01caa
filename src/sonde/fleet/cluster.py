"""Asking all hosts of a cluster at once, by a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sonde import environ
from sonde.analysis.live_processes import drop_replaced
from sonde.errors import Error, HostsMissing, NoSession, QueryError
from sonde.fleet import credentials
from sonde.fleet.client import Asker, Clock, Refused
from sonde.fleet.hosts import Cluster
from sonde.fleet.protocol import PROCESSES
from sonde.words import clean, count_things

MEMORY_BYTES = 1 << 30  # of all answers together
_GRACE_S = 0.5  # for calls to notice that their time is over
_MOST_NAMED = 8
_STACK_BYTES = 1 << 19
_NO_SESSION = NoSession.exit_code


class Gathered:
    """What the hosts of a cluster answered, and what is missing."""

    def __init__(self) -> None:
        self.tables: dict[str, pa.Table] = {}
        self.empty: list[str] = []  # hosts that have no such recording
        self.failures: dict[str, Error] = {}
        self.clocks: dict[str, Clock] = {}

    def describe_missing(self) -> list[str]:
        """Return one line for each reason, with the hosts that it holds for."""
        total = len(self.tables) + len(self.empty) + len(self.failures)
        reasons: dict[str, list[str]] = {}
        for host, error in self.failures.items():
            reasons.setdefault(str(error), []).append(host)
        lines = [
            f"no answer from {_name_hosts(hosts)} ({len(hosts)} of {count_things(total, 'host')}): "
            f"{clean(reason)}"
            for reason, hosts in reasons.items()
        ]
        if self.empty and self.tables:
            lines.append(f"{_name_hosts(self.empty)} ha{'s' if len(self.empty) == 1 else 've'} no "
                         "such recording")  # fmt: skip
        return lines

    def require_some(self, target: str) -> None:
        """Raise an error if there is no answer at all."""
        if self.tables:
            return
        if not self.failures:
            none = f"none of {count_things(len(self.empty), 'host')} has a recording"
            if target == "all":
                raise NoSession(f"{none}; the agent looks where SONDE_DIR of its own user says")
            raise NoSession(f"{none} called {target}; `sonde ps @…` lists what they have")
        first, *others = self.failures.values()
        same = all(str(other) == str(first) for other in others)
        if same and first.exit_code == QueryError.exit_code:
            raise QueryError(str(first))  # the SQL is wrong, everywhere
        raise HostsMissing("; ".join(self.describe_missing()))


def _name_hosts(hosts: Sequence[str]) -> str:
    names = sorted(hosts)
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], "…", names[-1]]
    return clean(", ".join(names))


def ask_all(
    cluster: Cluster, request: Mapping[str, Any], timeout_s: float, *, hellos: int = 0
) -> Gathered:
    """Send a request to every host; return when all have answered, or the time is over. More
    `hellos` make for a better idea of the hosts' clocks."""
    environ.silence_grpc()
    credentials.read_token()  # an error of ours is one error, not one of every host
    deadline = time.monotonic() + timeout_s
    limit_bytes = MEMORY_BYTES // len(cluster.hosts)
    done: queue.Queue[tuple[str, pa.Table | Error, Clock | None]] = queue.Queue()

    def work(host: str) -> None:
        clock = None
        try:
            with Asker(host, deadline) as asker:
                rows = asker.ask({**request, "target": cluster.target}, limit_bytes)
                for _ in range(hellos):
                    asker.say_hello()
                clock = asker.clock
            done.put((host, rows, clock))
        except Error as error:
            done.put((host, error, clock))
        except BaseException as failure:  # a bug; said of its host, not lost with the thread
            done.put((host, Refused(f"{type(failure).__name__}: {failure}"), clock))
            raise

    before = threading.stack_size(_STACK_BYTES)  # a thousand of the usual ones are 8 GiB
    try:
        for host in cluster.hosts:
            threading.Thread(target=work, args=(host,), name="sonde-ask", daemon=True).start()
    finally:
        threading.stack_size(before)
    return _gather(cluster, done, deadline + _GRACE_S)


def _gather(
    cluster: Cluster,
    done: queue.Queue[tuple[str, pa.Table | Error, Clock | None]],
    until: float,
) -> Gathered:
    found, waiting = Gathered(), set(cluster.hosts)
    while waiting:
        try:
            host, answer, clock = done.get(timeout=max(0.001, until - time.monotonic()))
        except queue.Empty:
            late = Refused("it has not answered in time")
            found.failures.update(dict.fromkeys(waiting, late))
            break
        waiting.discard(host)
        if clock is not None:
            found.clocks[host] = clock
        if isinstance(answer, pa.Table):
            found.tables[host] = answer
        elif answer.exit_code == _NO_SESSION:
            found.empty.append(host)
        else:
            found.failures[host] = answer
    return found


def read_processes_of(found: Gathered) -> list[dict[str, Any]]:
    """Return the rows of live_processes.read_processes of all hosts; a host that sends anything
    else is one that did not answer."""
    rows: list[dict[str, Any]] = []
    for host, table in list(found.tables.items()):
        if table.schema.equals(PROCESSES):
            rows += table.to_pylist()
        else:
            found.failures[host] = Refused("its answer has no stacks; it may be another sonde")
            del found.tables[host]
    return drop_replaced(rows)
