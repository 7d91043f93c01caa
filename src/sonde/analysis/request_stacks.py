"""Where single requests spent their time, told by the samples that were taken meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sonde.analysis.code_fold import Step, add_c_call, fold
from sonde.analysis.code_names import LIBRARY, MINE, PYTHON, find_owner, name_call
from sonde.analysis.hot_call import cut_tail, find_hot_call
from sonde.analysis.profile import ProfileFrame
from sonde.store.recording import Recording

NEEDS = "python.stack_sample python.frame python.loop_hold"
# SQL for the stack of a row of python.loop_hold; all waits for the GIL are one, whoever waits.
_GIL = 0  # stands for them in place of a stack
HOLDER = f"CASE WHEN wait = 'gil' THEN {_GIL} ELSE stack END"
# The stacks of all threads that were inside of the function which answers: a framework may have it
# run by a thread of its own. While it awaits something, it is on no stack.
_SQL = """
WITH request(number, host, pid, thread, begin_ns, end_ns, file, first_line) AS (VALUES {requests}),
seen AS (
  SELECT r.number, r.file, r.first_line, s.thread = r.thread AS is_own, s.stack, s.idle, s.call,
         s.wall_ns
  FROM python.stack_sample AS s JOIN request AS r
    ON s.host = r.host AND s.pid = r.pid AND s.t_ns BETWEEN r.begin_ns AND r.end_ns),
inside AS (
  SELECT DISTINCT number, stack FROM seen JOIN python.frame AS f USING (stack)
  WHERE f.file = seen.file AND f.first_line = seen.first_line)
SELECT number, is_own, stack, call, SUM(wall_ns)::BIGINT AS wall_ns,
       (SUM(wall_ns) FILTER (idle))::BIGINT AS idle_ns
FROM seen JOIN inside USING (number, stack) GROUP BY number, is_own, stack, call
-- Where the thread of the request runs the function itself, others run it for other requests.
QUALIFY is_own OR NOT bool_or(is_own) OVER (PARTITION BY number) ORDER BY wall_ns DESC"""
# What else kept the event loop meanwhile.
_HELD = """
WITH request(number, host, pid, thread, begin_ns, end_ns, file, first_line) AS (VALUES {requests}),
own AS (
  SELECT DISTINCT number, stack FROM python.frame AS f JOIN request AS r
    ON f.file = r.file AND f.first_line = r.first_line)
SELECT number, {holder} AS stack,
       SUM(LEAST(h.t_ns + h.dur_ns, end_ns) - GREATEST(h.t_ns, begin_ns))::BIGINT AS held_ns
FROM python.loop_hold AS h JOIN request AS r
  ON h.host = r.host AND h.pid = r.pid AND h.thread = r.thread
  AND h.t_ns < end_ns AND h.t_ns + h.dur_ns > begin_ns
ANTI JOIN own USING (number, stack) GROUP BY ALL ORDER BY held_ns DESC"""
_FRAMES = """
SELECT stack, func, file, lineno, first_line FROM python.frame
WHERE stack IN ({stacks}) ORDER BY stack, depth DESC"""


class RequestStack(NamedTuple):
    """Where a request was: the stack that most of its time was seen in, and who was in its way."""

    steps: Sequence[Step]  # from the function that answers to the innermost call; may be empty
    time_ns: int  # in this stack
    waiting_ns: int  # of it, while the thread waited for something
    seen_ns: int  # in all stacks of the function that answers
    holder: Sequence[Step]  # what kept the event loop the longest meanwhile; may be empty
    held_ns: int  # how long other callbacks kept the event loop meanwhile


def read_stacks(recording: Recording, requests: Sequence[Mapping[str, Any]]) -> list[RequestStack]:
    """Return where each request was (rows of python.request)."""
    values = ", ".join(
        f"({at}, {_quote(row['host'])}, {row['pid']}, {row['thread']}, {row['t_ns']}, "
        f"{row['t_ns'] + row['dur_ns']}, {_quote(row['file'] or '')}, {row['first_line'] or 0})"
        for at, row in enumerate(requests)
    )
    seen = _group(recording, _SQL.format(requests=values))
    held = _group(recording, _HELD.format(requests=values, holder=HOLDER))
    stacks = {row["stack"] for rows in seen.values() for row in rows}
    frames = read_frames(recording, stacks | {rows[0]["stack"] for rows in held.values()})
    found = []
    for at, request in enumerate(requests):
        most = request["dur_ns"]  # a sample stands for the time since the one before it
        rows, others = seen.get(at, []), held.get(at, [])
        steps, time_ns, waiting_ns = _find_heaviest(rows, frames, request)
        found.append(RequestStack(
            steps, min(most, time_ns), waiting_ns * min(most, time_ns) // max(1, time_ns),
            min(most, sum(row["wall_ns"] for row in rows)),
            fold_holder(others[0]["stack"], frames) if others else (),
            min(most, sum(row["held_ns"] for row in others)),
        ))  # fmt: skip
    return found


def _find_heaviest(
    rows: Sequence[dict[str, Any]],
    frames: dict[int, list[ProfileFrame]],
    request: Mapping[str, Any],
) -> tuple[Sequence[Step], int, int]:
    """Return the functions of the user's own that most time was spent in, called by each other, and
    that time: all, and waiting. What they call is part of it if that is most of it."""
    sums: dict[object, list[int]] = {}
    calls: dict[object, dict[object, int]] = {}
    first: dict[object, Sequence[Step]] = {}
    stacks: dict[object, list[dict[str, Any]]] = {}
    for row in rows:  # the heaviest first
        steps = _fold(frames[row["stack"]], row["call"], request)
        key, called = (tuple(one.name for one in steps if one.owner == MINE),
                       tuple(one.name for one in steps))  # fmt: skip
        time = sums.setdefault(key, [0, 0])
        time[0] += row["wall_ns"]
        time[1] += row["idle_ns"] or 0
        inside = calls.setdefault(key, {})
        inside[called] = inside.get(called, 0) + row["wall_ns"]
        first.setdefault(called, steps)
        stacks.setdefault(key, []).append(row)
    if not sums:
        return (), 0, 0
    best = max(sums, key=lambda key: sums[key][0])
    heaviest = max(calls[best], key=lambda called: calls[best][called])
    (time_ns, waiting_ns), steps = sums[best], first[heaviest]
    if calls[best][heaviest] < time_ns / 2:
        steps = [step for step in steps if step.owner == MINE] or steps
        steps = [*steps, *_name_hot_call(stacks[best], frames, request)]
    return steps, time_ns, waiting_ns


def _name_hot_call(
    rows: Sequence[dict[str, Any]],
    frames: dict[int, list[ProfileFrame]],
    request: Mapping[str, Any],
) -> list[Step]:
    """Return what these stacks were in most of the time, below the user's own code, if anything."""
    own = _make_owner(request)
    tails = [cut_tail(frames[row["stack"]], own) for row in rows]
    hot = find_hot_call(tails, [row["wall_ns"] for row in rows], own)
    return (
        [] if hot is None else [Step(name_call(hot.func, hot.file), LIBRARY, hot.file, hot.line, 0)]
    )


def _group(recording: Recording, sql: str) -> dict[int, list[dict[str, Any]]]:
    """Return rows by the number of their request, the heaviest first."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in recording.query(sql).to_pylist():
        found.setdefault(row["number"], []).append(row)
    return found


def _fold(
    frames: list[ProfileFrame], call: str | None, request: Mapping[str, Any]
) -> Sequence[Step]:
    """Return a stack from the function that answers on, which counts as the user's own."""
    file, first_line = request["file"], request["first_line"]
    steps = fold(frames, _make_owner(request))
    begin = [
        at for at, step in enumerate(steps) if (step.file, step.first_line) == (file, first_line)
    ]
    return add_c_call(steps[begin[0] :] if begin else steps, call)


def _make_owner(request: Mapping[str, Any]) -> Callable[[str], str]:
    return lambda path: MINE if path == request["file"] else find_owner(path)


def read_frames(recording: Recording, stacks: Iterable[int]) -> dict[int, list[ProfileFrame]]:
    """Return the frames of stacks, root first."""
    found = {stack: list[ProfileFrame]() for stack in stacks}
    if found:
        sql = _FRAMES.format(stacks=", ".join(map(str, found)))
        for row in recording.query(sql).to_pylist():
            frame = ProfileFrame(row["func"], row["file"], row["lineno"], row["first_line"])
            found[row["stack"]].append(frame)
    return found


def fold_holder(stack: int, frames: Mapping[int, Sequence[ProfileFrame]]) -> Sequence[Step]:
    """Return the stack that kept an event loop: the user's own code and the call that it makes, or
    the library that it was in."""
    if stack == _GIL:
        return [Step("waiting for the GIL", PYTHON, "", 0, 0)]
    if not frames[stack]:
        return [Step("a function whose name is lost", PYTHON, "", 0, 0)]
    steps = fold(frames[stack], find_owner)
    if any(step.owner == MINE for step in steps):
        return steps
    return fold(frames[stack], find_owner, by_package=True)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
