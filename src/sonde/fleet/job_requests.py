"""What an agent has the jobs of its host do, if it may steer them: profiles and captures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sonde.analysis import capture
from sonde.analysis.profile_process import ProfileOptions
from sonde.errors import ConfigError, Error
from sonde.session import Session, captures, runs, steering
from sonde.session.run import Run

Asked = Mapping[str, Any]
Row = dict[str, Any]
# One row per process: what came of it, or why nothing did.
DONE_COLUMNS = pa.schema(
    [("host", pa.string()), ("pid", pa.int64()), ("rank", pa.int64()), ("found", pa.string()),
     ("note", pa.string())]
)  # fmt: skip
_RESULT_S = 10.0  # for a process to write down what it saw
_MOST_S = 240.0  # of one profile or capture


def profile_all(sessions: Sequence[Session], asked: Asked) -> pa.Table:
    """Profile all live processes at the same time; the result of each is text, as in its file."""
    duration_s = _read_span(asked, "duration_s")
    options = ProfileOptions(
        every=_read_span(asked, "every_s"), sources=_read_words(asked, "sources"),
        tags=_read_words(asked, "tags"),
    ).make_run_options(duration_s)  # fmt: skip
    begun: dict[str, Run] = {}
    notes: dict[str, str] = {}
    live = _choose(sessions)
    for session in live:
        try:
            begun[session.id] = runs.start(session, options)
        except (Error, OSError) as error:
            notes[session.id] = str(error)
    until = time.monotonic() + duration_s + _RESULT_S
    rows = []
    for session in live:
        found = None
        if session.id in begun:
            found, notes[session.id] = _finish(begun[session.id], until)
        rows.append(_make_row(session, found, notes.get(session.id)))
    return pa.Table.from_pylist(rows, schema=DONE_COLUMNS)


def _finish(run: Run, until: float) -> tuple[str | None, str]:
    try:
        run.wait_end(max(0.1, until - time.monotonic()))
        run.stop()
        return json.dumps(run.result(_RESULT_S).found.dump()), ""
    except (Error, OSError) as error:
        return None, str(error)


def capture_all(sessions: Sequence[Session], asked: Asked) -> pa.Table:
    """Record a few steps of all live processes in full; `found` is the path of the trace."""
    steps = asked.get("steps")
    duration_s = None if asked.get("duration_s") is None else _read_span(asked, "duration_s")
    timeout_s = _read_span(asked, "wait_s")
    options = captures.CaptureOptions(
        steps=steps if isinstance(steps, int) and duration_s is None else None,
        duration_s=duration_s, timeout_s=timeout_s, shapes=bool(asked.get("shapes", True)),
        memory=bool(asked.get("memory")), stacks=bool(asked.get("stacks")),
    )  # fmt: skip
    requests = capture.request_captures(_choose(sessions), options)
    waited = timeout_s + (duration_s or 0.0)
    rows = []
    for one in capture.wait_for_captures(requests, waited, lambda _text: None):
        try:
            rows.append(_make_row(one.session, one.find_file(), one.about.why))
        except Error as error:
            rows.append(_make_row(one.session, None, str(error)))
    return pa.Table.from_pylist(rows, schema=DONE_COLUMNS)


def _choose(sessions: Sequence[Session]) -> list[Session]:
    """Return the live processes, without those that they have forked."""
    live = steering.select_alive(list(sessions))
    ids = {session.id for session in live}
    return [session for session in live if session.meta.parent not in ids]


def _make_row(session: Session, found: str | None, note: str | None) -> Row:
    return {"host": session.host, "pid": session.pid, "rank": session.rank, "found": found,
            "note": note or None}  # fmt: skip


def _read_span(asked: Asked, name: str) -> float:
    value = asked.get(name)
    if not isinstance(value, (int, float)) or not 0 < value <= _MOST_S:
        raise ConfigError(f"a cluster takes up to {_MOST_S:g} s for {name.removesuffix('_s')}")
    return float(value)


def _read_words(asked: Asked, name: str) -> list[str]:
    words = asked.get(name)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"the request has no {name}")
    return words
