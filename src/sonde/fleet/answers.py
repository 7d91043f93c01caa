"""What an agent answers: by the same files and requests as the commands on its host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from sonde import environ
from sonde.analysis.live_processes import choose_current, read_processes
from sonde.errors import Error, NoSession
from sonde.fleet.job_requests import capture_all, profile_all
from sonde.fleet.protocol import PROCESSES
from sonde.session import Session, steering
from sonde.session.target import find_sessions
from sonde.settings import list_keys
from sonde.store.engine import abandoned
from sonde.store.pool import EnginePool, PooledRecording

LONGEST_S = 300.0  # of any request
_LOOK_S = 0.5  # for all processes of the host to be sampled
_MOST_ABANDONED = 4
_KEPT = 2  # databases between two requests
Asked = Mapping[str, Any]


class Leave:
    """What the agent was started with: the memory of a query, whether jobs may be steered, and the
    folder of all sessions."""

    def __init__(self, memory: str, *, steer: bool, root: str | None = None) -> None:
        self.root = root or environ.find_root()
        self.memory, self.steer, self.pool = memory, steer, EnginePool(_KEPT)


def answer(asked: Asked, leave: Leave) -> pa.Table:
    """Return the rows that a request asks for; raise an Error whose text goes to whoever asked."""
    name = asked.get("request")
    if not isinstance(name, str) or name not in _ANSWERS:
        raise Error(f"this agent knows no request {str(name)[:40]!r}; it may be older")
    if name in _STEERS and not leave.steer:
        raise Error(f"this agent only reads; `sonde agent --allow-steer` would let you {name}")
    return _ANSWERS[name](asked, leave)


def _find(asked: Asked, leave: Leave) -> list[Session]:
    """Return the sessions of a target: never a folder, which could be anywhere on the host."""
    target = _read_text(asked, "target")
    if os.sep in target or target in (".", ".."):
        raise NoSession("agents know recordings by pid, job, program or id, not by folder")
    return find_sessions(target, leave.root)


def _read_text(asked: Asked, name: str) -> str:
    found = asked.get(name)
    if not isinstance(found, str):
        raise Error(f"the request has no {name}")
    return found


def _read_timeout(asked: Asked) -> float:
    found = asked.get("timeout_s")
    return min(float(found), LONGEST_S) if isinstance(found, (int, float)) and found > 0 else 1.0


def _query(asked: Asked, leave: Leave) -> pa.Table:
    if len(abandoned) >= _MOST_ABANDONED:
        raise Error("this agent has queries that do not end; start it anew")
    sql = _read_text(asked, "sql")
    recording = PooledRecording(_find(asked, leave), leave.pool)
    return recording.query(sql, timeout_s=_read_timeout(asked), memory=leave.memory)


def _look(asked: Asked, leave: Leave) -> pa.Table:
    rows = read_processes(choose_current(_find(asked, leave)), min(_LOOK_S, _read_timeout(asked)))
    return pa.Table.from_pylist(rows, schema=PROCESSES)


def _show_settings(asked: Asked, leave: Leave) -> pa.Table:
    return _list_settings({one: one.read_config() for one in _find(asked, leave) if one.is_alive()})


def _configure(asked: Asked, leave: Leave) -> pa.Table:
    changes = asked.get("changes")
    if not isinstance(changes, dict):
        raise Error("the request has no changes")
    live = steering.select_alive(_find(asked, leave))
    timeout_s = _read_timeout(asked)
    return _list_settings({one: steering.configure(one, changes, timeout_s) for one in live})


def _list_settings(found: Mapping[Session, Mapping[str, Any]]) -> pa.Table:
    keys = list_keys()
    rows = [
        {"host": session.host, "pid": session.pid, "rank": session.rank, "setting": name,
         "value": keys[name].show(value)}
        for session, values in found.items() for name, value in values.items() if name in keys
    ]  # fmt: skip
    columns = {"host": "string", "pid": "int64", "rank": "int64", "setting": "string",
               "value": "string"}  # fmt: skip
    return pa.Table.from_pylist(
        rows, schema=pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    )


def _profile(asked: Asked, leave: Leave) -> pa.Table:
    return profile_all(_find(asked, leave), asked)


def _capture(asked: Asked, leave: Leave) -> pa.Table:
    return capture_all(_find(asked, leave), asked)


_ANSWERS: dict[str, Callable[[Asked, Leave], pa.Table]] = {
    "query": _query, "stacks": _look, "settings": _show_settings, "configure": _configure,
    "profile": _profile, "capture": _capture,
}  # fmt: skip
_STEERS = ("configure", "profile", "capture")
