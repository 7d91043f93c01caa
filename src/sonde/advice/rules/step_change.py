"""From one moment on, steps take longer.

Why it hurts: nothing was changed in the program, and yet the same work takes longer from then on;
it will not become quick again by itself.

What to do: see what began at that moment: another program on the machine, a file that has grown, a
cache that is full, a GPU that is hot. `sonde compare` with a window before and one after that
moment shows all that is different.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from sonde.advice.rules._code import PLACE, describe_more, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict
from sonde.analysis.code_names import show_call
from sonde.words import show_moment

DANGER = True  # it may have begun a minute ago
MOST = "warning"
UNLESS = ("cpu_starved", "slower_steps")
CROWD = "info"
NEEDS = ("python.torch_step.dur_ns",)
OTHERWISE = "the recording is too short"
LIMITS = {
    "times": Limit(1.3, "times as long as before, from which it counts"),
    "least": Limit(
        6, "fewest parts of the time, a tenth of a piece or four steps, before and after"
    ),
    "apart_pct": Limit(85, "of the parts on either side that are nearer to their own side"),
    "explained_pct": Limit(50, "of the added time that is spent at one line, to name it"),
}
HOOK = ", a hook of a module"
_FEW = 4  # steps in a part
_Line = tuple[str, int, str, str | None]  # file, line, function; what it waits for, if it does
# What steps take in each part of the time, and where the main thread works or waits meanwhile. It
# is left out where a library waits for threads of its own, which may be short of a processor, and
# where a collective waits for another rank: what that one does is its own change.
# A part is a tenth of a piece; of a long recording more, so that there are no more than 600.
_PART_US = "(GREATEST({piece_s} / 10, {piece_s} * ({last_piece} + 1) / 600) * 1e6)::BIGINT"
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, epoch_us(ts) // {_PART_US} AS part, host, pid, rank, ts, dur_ns,
         forward_ns, backward_ns
  FROM python.torch_step WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end'),
timed AS (
  SELECT MIN(piece) AS piece, part, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         MEDIAN(dur_ns) / 1e9 AS step_s, MEDIAN(forward_ns) / 1e9 AS forward_s,
         MEDIAN(backward_ns) / 1e9 AS backward_s, epoch_us(MIN(ts)) AS begin_us
  FROM step GROUP BY part, host, pid),
collective AS (
  SELECT DISTINCT stack FROM python.frame WHERE file LIKE '%/torch/distributed/%'),
sample AS (
  SELECT epoch_us(ts) // {_PART_US} AS part, host, pid, stack,
         CASE WHEN idle THEN COALESCE(wait, '') END AS kind, ANY_VALUE(call) AS call,
         SUM(CASE WHEN idle THEN wall_ns ELSE cpu_ns END) / 1e9 AS s
  FROM python.stack_sample SEMI JOIN timed USING (host, pid)
  WHERE {{inside}} AND thread = pid AND NOT (
    idle AND wait = 'lock' AND call IS NOT NULL AND NOT starts_with(call, '_thread.'))
    AND NOT (idle AND stack IN (FROM collective))
  GROUP BY ALL),
-- What torch calls around a module, and is not its forward pass, is a hook.
place AS (
  SELECT p.stack, p.file, p.lineno, p.func,
         above.file LIKE '%/torch/nn/modules/module.py' AND p.func NOT LIKE '%forward' AS is_hook
  FROM ({PLACE}) AS p LEFT JOIN python.frame AS above
    ON above.stack = p.stack AND above.depth = own_depth + 1),
spent AS (
  SELECT part, host, pid, file, lineno, func, kind, ANY_VALUE(call) AS call,
         ANY_VALUE(is_hook) AS is_hook, SUM(s) AS s
  FROM sample JOIN place USING (stack) GROUP BY part, host, pid, file, lineno, func, kind),
line AS (
  SELECT part, host, pid, LIST(struct_pack(file, lineno, func, kind, call, is_hook, s)) AS lines
  FROM spent GROUP BY part, host, pid),
own AS (SELECT part, host, pid, SUM(s) AS own_s FROM sample GROUP BY part, host, pid)
SELECT piece, part, host, pid, rank, steps, step_s, forward_s, backward_s, begin_us, own_s,
       lines
FROM timed FULL JOIN own USING (part, host, pid) LEFT JOIN line USING (part, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for parts in group_parts(rows, _FEW):
        if len(parts) >= 2 * limits.least:
            yield from _judge_process(parts, limits)


def group_parts(rows: Rows, few: int) -> Iterator[list[Any]]:
    """Yield the parts of each process, in their order, each of which has at least a few steps."""
    by_process: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        by_process.setdefault((row.host, row.pid), []).append(row)
    for found in by_process.values():
        yield _merge(sorted(found, key=lambda row: row.part), few)


def _merge(rows: list[Any], few: int) -> list[Any]:
    """Return the parts, put together until each has a few steps: a step may be longer than one, and
    what is seen in the next one then belongs to it."""
    found: list[Any] = []
    for row in rows:
        if found and (row.steps is None or found[-1].steps < few):
            found[-1] = add_parts(found[-1], row)
        elif row.steps is not None:
            found.append(row)
    return found


def add_parts(one: Any, other: Any) -> Any:
    """Return two parts as one."""
    steps = one.steps + (other.steps or 0)
    both = {
        name: (getattr(one, name) * one.steps + (getattr(other, name) or 0.0) * (other.steps or 0))
        / steps
        for name in ("step_s", "forward_s", "backward_s")
    }
    return one._replace(
        **both, steps=steps, own_s=(one.own_s or 0.0) + (other.own_s or 0.0),
        lines=[*(one.lines or ()), *(other.lines or ())],
    )  # fmt: skip


def _judge_process(rows: list[Any], limits: Limits) -> Iterator[Verdict]:
    """All parts of one process at once: there is one moment that divides them best."""
    who = "" if rows[0].rank is None else f"rank {rows[0].rank}"
    at = _find_change([find_net(row) for row in rows], limits)
    while at is None and len(rows) >= 4 * limits.least:  # on a busy machine few steps say little
        rows = [add_parts(*pair) for pair in zip(rows[::2], rows[1::2], strict=False)]
        at = _find_change([find_net(row) for row in rows], limits)
    if at is None:
        for piece in sorted({row.piece for row in rows}):
            yield Verdict(piece, False, who=who)
        return
    before, after = rows[:at], rows[at:]
    old_s, new_s = (median(map(find_net, side)) for side in (before, after))
    what, line = explain(before, after, new_s - old_s, limits)
    times = new_s / old_s
    title = (
        f"Since {show_moment(after[0].begin_us * 1000)[11:]} steps take {times:.2g} times as long"
    )
    evidence = {"step_before_ns": 1e9 * old_s, "step_since_ns": 1e9 * new_s, "times_as_long": times}
    begun = after[0].piece
    for piece in sorted({row.piece for row in rows}):
        steps = sum(row.steps for row in rows if row.piece == piece)
        # Without a line it may be the machine's doing.
        yield Verdict(
            piece, piece >= begun, evidence, readings=steps, who=who,
            lost_pct=100 * (1 - 1 / times) if line else None, severity="info",
            title=f"{title}: the program {what} since then" if what else title, line=line,
        )  # fmt: skip


def find_net(row: Any) -> float:
    """Return what a step takes without waiting for a processor, which is the doing of others, and
    of which cpu_starved speaks."""
    net_s: float = row.own_s / row.steps if row.own_s else row.step_s
    return net_s


def _find_change(values: Sequence[float], limits: Limits) -> int | None:
    """Return the first of the values after a rise that stays, as a place; None if there is none.

    Of all ways to divide them in two, the best leaves the least difference from the two means."""
    least, count = int(limits.least), len(values)
    top = 3 * median(values)  # a checkpoint is no change
    sums = list(accumulate((min(value, top) for value in values), initial=0.0))
    gains = [
        (sums[at] ** 2 / at + (sums[count] - sums[at]) ** 2 / (count - at), at)
        for at in range(least, count - least + 1)
    ]
    at = max(gains)[1]
    old, new = median(values[:at]), median(values[at:])
    if new < limits.times * old or old <= 0:
        return None
    middle = (old + new) / 2
    low = sum(1 for value in values[:at] if value < middle)
    high = sum(1 for value in values[at:] if value > middle)
    is_apart = min(100 * low / at, 100 * high / (count - at)) >= limits.apart_pct
    return at if is_apart else None


def explain(
    before: Sequence[Any], after: Sequence[Any], added_s: float, limits: Limits
) -> tuple[str, str]:
    """Return what takes longer, in words, and its line; empty where nothing explains most of it."""
    enough_s = limits.explained_pct / 100 * added_s
    counts = [sum(row.steps for row in side) for side in (before, after)]
    old, new = (
        _sum_lines(side, count) for side, count in zip((before, after), counts, strict=True)
    )
    grown = {key: new[key] - old.get(key, 0.0) for key in new}
    worst = max(grown, key=grown.__getitem__, default=None)
    if worst is None:
        return "", ""
    file, lineno, func, kind = worst
    # One line, or else all lines of its function together.
    same_func = [key for key in grown if (key[0], key[2], key[3]) == (file, func, kind)]
    if not any(_explains(keys, old, new, enough_s) for keys in ([worst], same_func)):
        return "", ""
    told = [
        one for row in after for one in row.lines or ()
        if (one["file"], one["lineno"], one["kind"]) == (file, lineno, kind)
    ]  # fmt: skip
    calls = [one["call"] for one in told if one["call"]]
    what = describe_more(func, kind, show_call(calls[0]) if calls else None)
    is_hook = any(one.get("is_hook") for one in told)
    return f"{what}{HOOK if is_hook else ''}", show_place(file, lineno, func)


def _explains(
    keys: Sequence[_Line], old: Mapping[_Line, float], new: Mapping[_Line, float], enough_s: float
) -> bool:
    """Return whether most of what was added is at these lines, and the rest has not grown as well:
    where all of it takes longer, others use the caches, or the clock is lower."""
    had, has = (sum(side.get(key, 0.0) for key in keys) for side in (old, new))
    rest = [sum(old.values()) - had, sum(new.values()) - has]
    more = has * rest[0] - 2 * had * rest[1]
    # Where a function is all that was seen, there is no rest to tell.
    return has - had >= enough_s and (more > 0 or (more == 0 and len(keys) == 1))


def _sum_lines(rows: Sequence[Any], steps: int) -> dict[tuple[str, int, str, str | None], float]:
    """Return the seconds of a step at each line, by what it waits for."""
    found: dict[tuple[str, int, str, str | None], float] = {}
    for row in rows:
        for one in row.lines or ():
            key = one["file"], one["lineno"], one["func"], one["kind"]
            found[key] = found.get(key, 0.0) + one["s"] / steps
    return found


def find_top_line(rows: Sequence[Any]) -> str:
    """Return the line with the most time; empty if none is known."""
    spent = _sum_lines(rows, 1)
    if not spent:
        return ""
    file, lineno, func, _kind = max(spent, key=spent.__getitem__)
    return show_place(file, lineno, func)
