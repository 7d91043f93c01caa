"""Calls that are known to be costly take much of the time.

Why it hurts: the thread that decides how long the program takes spends its time there, and there is
a known way to do the same in far less.

What to do: see the line, and what it calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sonde.advice.costly_calls import LONG, SHORT, WAITING
from sonde.advice.rules._code import FILES, SUMS, in_python, show_place
from sonde.advice.rules._costly_causes import (
    BY_NAME,
    CALLS,
    find_cause,
    find_share,
    is_same,
    is_severe,
)
from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict, group

MOST = "warning"
APART = True
UNLESS = ("deadlock", "hang")
BRIEF = -1  # the threads that live for a small part of a piece, as one
BESIDE = ("debug_mode",)  # what takes the time then may be that
NEEDS = ("python.stack_sample.call", "python.frame.func")
LIMITS = {
    "factor": Limit(1, "times the share of a thread's time from which each kind of call counts"),
    "short_s": Limit(
        0.25, "mean time without another line in between, up to which calls are short"
    ),
    "long_s": Limit(
        0.4, "and from which single calls last long, without the time in which others run"
    ),
    "answers_pct": Limit(
        65, "of the time that it waits, other threads of the same process work: they answer it"
    ),
    "inner_pct": Limit(
        80, "of the time of one kind of call that another one, further in, takes: it is the cause"
    ),
    "queued_pct": Limit(
        50,
        "of the time at a sleep, less the sleep itself, spent waiting for a processor: what it "
        "used, it used before",
    ),
    "alone_pct": Limit(
        90,
        "of a thread's time spent calling others one after the other, from which the program does "
        "nothing else: that may be what it is there for, and it is only mentioned",
    ),
    "brief_pct": Limit(
        50,
        "of the time that another thread lives, below which threads are taken together: a "
        "server starts one for each request",
    ),
    "special_pct": Limit(
        50, "of the time of one kind of call that is also of a more special one: that is the cause"
    ),
    "same_pct": Limit(
        20, "of the time of one kind of call that is also of another, up to which both are told"
    ),
    "rest_pct": Limit(
        70, "of the main thread's time, less its queueing, spent waiting: others count, too"
    ),
}


def _list_words(rows: Iterator[tuple[object, ...]]) -> str:
    """Return rows of texts, each as a list called `word`, in SQL that is formatted: braces are
    doubled. It is one text for the engine: to plan VALUES of so many rows takes four times as
    long."""
    whole = "\n".join("\t".join(map(str, row)) for row in rows)
    text = whole.replace("{", "{{").replace("}", "}}").replace("'", "''")
    return f"SELECT string_split(unnest(string_split('{text}', '\n')), '\t') AS word"


_FRAMES = _list_words(
    (one.name, *frame.partition(":")[::2], int(one.is_through))
    for one in CALLS
    for frame in one.frames
)
_CALLS = _list_words(
    (one.name, call, "|" + "".join(f"{file}|" for file in one.via))
    for one in CALLS
    for call in one.calls
)
_BY_LENGTH = ", ".join(repr(one.name) for one in CALLS if one.stretch)
# What calls a program without being asked for anything: not a framework that serves requests.
_AROUND = (
    f"({in_python('threading.py')} OR {in_python('runpy.py')} OR file LIKE '<frozen %'"
    " OR file LIKE '%/concurrent/futures/%' OR file LIKE '%/multiprocessing/%'"
    f" OR {in_python('contextlib.py')} OR {in_python('functools.py')}"
    " OR file LIKE '%-packages/sonde/%' OR file LIKE '%/src/sonde/%')"
)
# What answers requests. If a process of the job does, it is what another one asks: a test, a load.
_SERVERS = (
    f"({in_python('socketserver.py')} OR {in_python('wsgiref/%')} OR file LIKE '%/uvicorn/%'"
    " OR file LIKE '%/gunicorn/%' OR file LIKE '%/hypercorn/%' OR file LIKE '%/waitress/%'"
    " OR file LIKE '%/cheroot/%' OR file LIKE '%/werkzeug/serving.py'"
    " OR file LIKE '%/aiohttp/web%' OR file LIKE '%/tornado/httpserver.py')"
)
# Of each stack: the outermost frame of a library that is known to be costly, and the line of the
# user's own that called it; or a method of the user's own that Python calls (__eq__). Where the
# library must not call back, no own frame lies inside of it. A forked worker has the stack of the
# process that started it below its own: what that did is not the worker's doing. How long single
# calls last is asked only where kinds are told by it: by the clock, and without the time in which
# others have the processor, so that neither is taken for the other because of them.
SQL = f"""
WITH known_frame AS MATERIALIZED (
  SELECT word[1] AS name, word[2] AS path, word[3] AS ending, word[4]::INTEGER AS is_through
  FROM ({_FRAMES})),
known_call AS MATERIALIZED (
  SELECT word[1] AS name, word[2] AS wanted, word[3] AS via FROM ({_CALLS})),
single AS (
  SELECT piece, host, pid, thread, stack, call, idle, wall_ns, queue_ns, samples,
         CASE WHEN idle AND wait = 'sleep' THEN wall_ns ELSE 0 END AS asleep_ns,
         CASE WHEN idle THEN 0 ELSE cpu_ns END AS cpu_ns
  FROM ({SUMS})),
brief AS (
  SELECT piece, host, pid, thread, TRUE AS is_brief FROM single
  GROUP BY piece, host, pid, thread
  QUALIFY thread <> pid AND SUM(wall_ns) < {{brief_pct}} / 100
    * MAX(SUM(wall_ns)) OVER (PARTITION BY piece, host, pid)),
total AS MATERIALIZED (
  SELECT piece, host, pid, CASE WHEN is_brief THEN {BRIEF} ELSE thread END AS thread, stack, call,
         idle, SUM(wall_ns) AS wall_ns, SUM(queue_ns) AS queue_ns, SUM(cpu_ns) AS cpu_ns,
         SUM(samples) AS samples, SUM(asleep_ns) AS asleep_ns
  FROM single LEFT JOIN brief USING (piece, host, pid, thread) GROUP BY ALL),
frame AS MATERIALIZED (
  SELECT stack, depth, func, file, lineno, is_own FROM python.frame JOIN ({FILES}) USING (file)
  WHERE stack IN (SELECT stack FROM total)),
own AS (SELECT stack, MIN(depth) AS depth FROM frame WHERE is_own GROUP BY stack),
leaf AS (
  SELECT stack, CASE WHEN {in_python("%")} THEN '|' || parse_filename(file) || '|' ELSE '?' END
    AS file FROM frame WHERE depth = 0),
child AS (
  SELECT stack, MIN(depth) AS depth FROM frame
  WHERE file LIKE '%/multiprocessing/process.py' AND ends_with(func, '_bootstrap')
  GROUP BY stack),
outside AS (
  SELECT stack, MAX(depth) AS depth FROM frame WHERE NOT is_own AND NOT {_AROUND} GROUP BY stack),
costly AS (
  SELECT DISTINCT name, func, file, is_through, path = '' AS is_mine
  FROM (SELECT DISTINCT func, file, is_own FROM frame) JOIN known_frame
    ON contains(file, path) AND (is_own OR file = '<string>') = (path = '')
      AND ((ending = '' AND func <> '<module>') OR func = ending
        OR ends_with(func, '.' || ending))),
seen AS (
  SELECT stack, NULL AS call, name, MAX(frame.depth) AS depth,
         ARG_MAX(CASE WHEN is_mine THEN func END, frame.depth) AS method
  FROM frame JOIN costly USING (func, file) JOIN own USING (stack) LEFT JOIN child USING (stack)
  WHERE (is_through = 1 OR frame.depth < own.depth)
    AND (child.depth IS NULL OR frame.depth < child.depth) GROUP BY ALL
  UNION ALL
  SELECT DISTINCT total.stack, total.call, name, -1, NULL
  FROM total JOIN own USING (stack) JOIN leaf USING (stack) JOIN known_call
    ON (own.depth = 0 OR contains(via, leaf.file))
      AND (total.call = wanted OR (ends_with(wanted, '.') AND starts_with(total.call, wanted)))),
caller AS (
  SELECT seen.stack, seen.call, name, method, MIN(frame.depth) AS depth
  FROM seen JOIN frame ON frame.stack = seen.stack AND is_own AND frame.depth > seen.depth
  GROUP BY ALL),
moment AS (
  SELECT {{piece}} AS piece, host, pid, thread, stack, call, idle,
         stack IS DISTINCT FROM LAG(stack) OVER moments
           OR call IS DISTINCT FROM LAG(call) OVER moments OR (idle AND samples = 1) AS is_new
  FROM python.stack_sample SEMI JOIN (
    SELECT DISTINCT piece, host, pid FROM total JOIN caller USING (stack)
    WHERE name IN ({_BY_LENGTH}) AND wall_ns > 1e7) AS wanted
    ON wanted.host = stack_sample.host AND wanted.pid = stack_sample.pid
      AND wanted.piece = {{piece}}
  WHERE {{inside}}
  WINDOW moments AS (PARTITION BY host, pid, thread ORDER BY t_ns)),
stretch AS (
  SELECT piece, host, pid, CASE WHEN is_brief THEN {BRIEF} ELSE thread END AS thread, stack,
         COALESCE(call, '') AS called, idle, COUNT(*) AS stretches
  FROM moment LEFT JOIN brief USING (piece, host, pid, thread) WHERE is_new GROUP BY ALL),
hit AS (
  SELECT total.piece, total.host, total.pid, total.thread, name, file, lineno, func,
         SUM(wall_ns) AS wall_ns, SUM(wall_ns) FILTER (total.idle) AS idle_ns,
         SUM(queue_ns) AS queue_ns, SUM(cpu_ns) AS cpu_ns, SUM(stretches) AS stretches,
         SUM(asleep_ns) AS asleep_ns, ARG_MAX(COALESCE(total.call, ''), wall_ns) AS call,
         ARG_MAX(method, wall_ns) AS method,
         ARG_MAX(caller.depth, wall_ns) AS depth,
         BOOL_OR(outside.depth > caller.depth) AS is_request
  FROM total JOIN caller
    ON caller.stack = total.stack AND (caller.call IS NULL OR caller.call = total.call)
  JOIN frame ON frame.stack = caller.stack AND frame.depth = caller.depth
  LEFT JOIN outside ON outside.stack = caller.stack
  LEFT JOIN stretch ON (stretch.piece, stretch.host, stretch.pid, stretch.thread, stretch.stack,
    stretch.called, stretch.idle) = (total.piece, total.host, total.pid, total.thread,
    total.stack, COALESCE(total.call, ''), total.idle)
  GROUP BY ALL),
overlap AS (
  SELECT piece, host, pid, thread, name,
         STRING_AGG(other || ' ' || wall_ns::BIGINT, ';' ORDER BY other) AS shared
  FROM (
    SELECT piece, host, pid, thread, one.name AS name, other.name AS other, SUM(wall_ns) AS wall_ns
    FROM total JOIN caller AS one
      ON one.stack = total.stack AND (one.call IS NULL OR one.call = total.call)
    JOIN caller AS other
      ON other.stack = total.stack AND (other.call IS NULL OR other.call = total.call)
    WHERE one.name <> other.name GROUP BY ALL)
  GROUP BY ALL),
server AS (
  SELECT COUNT(*) > 0 AS is_serving FROM (SELECT DISTINCT file FROM frame) WHERE {_SERVERS}),
thread AS (
  SELECT piece, host, pid, thread, SUM(wall_ns) AS alive_ns,
         COALESCE(SUM(wall_ns) FILTER (idle), 0) AS idle_ns, SUM(samples) AS samples,
         GREATEST(SUM(wall_ns) - COALESCE(SUM(queue_ns), 0), 1) AS able_ns,
         idle_ns + GREATEST(SUM(cpu_ns), COALESCE(
           SUM(wall_ns - COALESCE(queue_ns, 0)) FILTER (NOT idle), 0)) AS given_ns
  FROM total GROUP BY ALL),
process AS (
  SELECT piece, host, pid, SUM(samples)::BIGINT AS readings,
         COALESCE(MAX(alive_ns) FILTER (thread <> {BRIEF}), MAX(alive_ns)) AS alive_ns,
         MAX(idle_ns / able_ns) FILTER (thread = pid) * 100 AS rest_pct,
         SUM(alive_ns - idle_ns) AS work_ns FROM thread
  WHERE alive_ns > 0 GROUP BY ALL)
SELECT piece, host, pid, readings, rest_pct, is_serving, thread, name, file, lineno, func, call,
       method, depth, able.alive_ns / 1e9 AS alive_s, COALESCE(shared, '') AS shared,
       COALESCE(is_request, FALSE) AS is_request, hit.wall_ns / able.alive_ns * 100 AS time_pct,
       COALESCE(hit.idle_ns, 0) / able.alive_ns * 100 AS waiting_pct,
       COALESCE(hit.asleep_ns, 0) / able.alive_ns * 100 AS asleep_pct,
       COALESCE(hit.queue_ns, 0) / able.alive_ns * 100 AS queue_pct,
       given_ns / able.alive_ns * 100 AS given_pct, hit.cpu_ns / able.alive_ns * 100 AS cpu_pct,
       hit.wall_ns / GREATEST(1, COALESCE(hit.stretches, 0)) / 1e9 AS stretch_s,
       GREATEST(0, hit.wall_ns - COALESCE(hit.queue_ns, 0))
         / GREATEST(1, COALESCE(hit.stretches, 0)) / 1e9 AS able_s,
       (work_ns - own_ns) / able.alive_ns * 100 AS others_pct
FROM process CROSS JOIN server
LEFT JOIN (FROM hit WHERE wall_ns > 1e7) AS hit USING (piece, host, pid)
LEFT JOIN overlap USING (piece, host, pid, thread, name)
LEFT JOIN (
  SELECT piece, host, pid, thread, given_ns, thread.alive_ns - idle_ns AS own_ns,
         GREATEST(thread.alive_ns, process.alive_ns) AS alive_ns
  FROM thread JOIN process USING (piece, host, pid)) AS able USING (piece, host, pid, thread)
"""
_ASKS = ("requests_in_turn", "unanswered")
_IN_TURN = ("requests_in_turn", "subprocess_per_item")
_MOST_TOLD = 3  # kinds of call of a process
_ONCE = {one.title: one.once for one in CALLS if one.is_once}


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    verdicts = []
    for piece, found in group(rows):
        by_process: dict[tuple[str, int], list[Any]] = {}
        for row in found:
            by_process.setdefault((row.host, row.pid), []).append(row)
        for one in by_process.values():
            verdicts += _judge_process(piece, _merge(one), limits)
    seen = Counter((verdict.who, verdict.title) for verdict in verdicts)
    for verdict in verdicts:
        if verdict.title not in _ONCE or seen[verdict.who, verdict.title] > 1:
            yield verdict
            continue
        title, todo = _ONCE[verdict.title] or (verdict.title, verdict.todo)
        yield verdict._replace(lost_pct=None, title=title, todo=todo)


def _merge(rows: list[Any]) -> list[Any]:
    """Return one row for each thread and kind of call, with the line that took the most of it."""
    kinds: dict[tuple[int, str], list[Any]] = {}
    for row in rows:
        kinds.setdefault((row.thread, row.name), []).append(row)
    return [
        max(same, key=lambda row: row.time_pct or 0)._replace(
            time_pct=sum(row.time_pct or 0 for row in same),
            waiting_pct=sum(row.waiting_pct or 0 for row in same),
            asleep_pct=sum(row.asleep_pct or 0 for row in same),
            queue_pct=sum(row.queue_pct or 0 for row in same),
            cpu_pct=sum(row.cpu_pct or 0 for row in same),
        )
        for same in kinds.values()
    ]


def _judge_process(piece: int, rows: list[Any], limits: Limits) -> list[Verdict]:
    hits = [row for row in rows if row.name is not None and _counts(row, rows, limits)]
    told: list[Any] = []
    for row in sorted(hits, key=_rank, reverse=True):
        cause = find_cause(row, hits, limits)
        if len(told) < _MOST_TOLD and not any(is_same(cause, one, limits) for one in told):
            told.append(cause)
    if not told:
        return [Verdict(piece, False, readings=rows[0].readings, who=f"pid {rows[0].pid}")]
    return [_make_verdict(piece, row, limits) for row in told]


def _make_verdict(piece: int, worst: Any, limits: Limits) -> Verdict:
    kind, share = BY_NAME[worst.name], find_share(worst)
    is_loss = is_severe(worst) and not _asks_own_server(worst)
    evidence: dict[str, float | str | None] = {
        "time_pct": worst.time_pct,
        "waiting_pct": worst.waiting_pct,
    }
    if worst.call or worst.method:
        evidence["call"] = worst.method or worst.call
    if kind.stretch:
        is_long = kind.stretch == LONG
        evidence["without_a_break_ns"] = 1e9 * (worst.able_s if is_long else worst.stretch_s)
    return Verdict(
        piece, True, evidence, lost_pct=share if is_loss else None, severity="info",
        readings=worst.readings, who=f"pid {worst.pid}", title=kind.title,
        todo=kind.instead, line=show_place(worst.file, worst.lineno, worst.func),
        most=LEVELS[-1] if _is_worth_more(worst, limits) else LEVELS[0],
        # Whoever is asked may stand in the same queue for a processor.
        crowd=LEVELS[0] if kind.state == WAITING else LEVELS[-1],
    )  # fmt: skip


def _rank(row: Any) -> tuple[bool, float, float, str]:
    """Return how bad this is; of two kinds that tell of the same time, one is more special."""
    return is_severe(row), round(find_share(row)), -BY_NAME[row.name].share_pct, row.name


def _is_worth_more(row: Any, limits: Limits) -> bool:
    """Return whether it may be more than mentioned. A driver that hands one thing after the other
    to others, and does nothing else, may be meant to: a test of a server, a build, a backup."""
    is_alone = row.name in _IN_TURN and find_share(row) >= limits.alone_pct
    return not is_alone and not _asks_own_server(row)


def _asks_own_server(row: Any) -> bool:
    """Return whether these are requests to a server of the same job: they may be there to test it,
    or to make it work, and what takes long is the server's. One that is asked by many at a time
    lets connections wait for a second, and then answers."""
    return row.name in _ASKS and bool(row.is_serving)


def _counts(row: Any, rows: list[Any], limits: Limits) -> bool:
    """Return whether this decides how long the program takes, and is what the kind of call says."""
    kind = BY_NAME[row.name]
    if row.thread != row.pid and not (row.rest_pct is None or row.rest_pct >= limits.rest_pct):
        return False
    queued = row.queue_pct >= limits.queued_pct / 100 * (row.time_pct - row.waiting_pct)
    if (kind.name == "tiny_sleeps" and queued) or (
        kind.name in ("imports", "classes_built") and row.func == "<module>"  # it begins
    ):
        return False
    if kind.stretch == SHORT and row.stretch_s > limits.short_s:
        return False
    if kind.stretch == LONG and row.able_s < limits.long_s:
        return False
    if row.cpu_pct < kind.cpu_pct or (kind.state == WAITING and _is_served(row, rows, limits)):
        return False
    return find_share(row) >= kind.share_pct * limits.factor


def _is_served(row: Any, rows: list[Any], limits: Limits) -> bool:
    """Return whether more requests at once would gain nothing: several threads send them already,
    or whoever answers is in this process, and busy."""
    if row.thread == BRIEF or len({one.thread for one in rows if one.name == row.name}) > 1:
        return True
    return bool(row.others_pct >= limits.answers_pct / 100 * row.waiting_pct)
