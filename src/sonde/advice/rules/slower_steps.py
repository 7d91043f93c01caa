"""Each step takes longer than the one before.

Why it hurts: work that grows with the number of steps done so far never ends: twice the steps take
four times as long.

What to do: see what the line does that grows: a list that is searched or summed from its start, a
table that is written whole each time, a file that is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from sonde.advice.rules import step_change
from sonde.advice.trend import find_order
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
NEEDS = ("python.torch_step.dur_ns", "python.torch_step.backward_ns")
OTHERWISE = "the recording is too short"
LIMITS = {
    "times": Limit(1.5, "times as long at the end as at the start, from which it counts"),
    "parts": Limit(9, "parts of the time, with as many steps in each, that are compared"),
    "order": Limit(0.8, "how far the parts come in rising order, where 1 is wholly"),
    "explained_pct": Limit(50, "of the added time that is spent at one line, to name it"),
    "backward_pct": Limit(70, "of the added time in the backward pass, to say that it grows"),
}
_FEW = 3  # steps in a part
SQL = step_change.SQL
_BACKWARD = (
    "The backward pass takes longer with each step: it goes back into the steps before",
    "something of an earlier step is used again with its graph: detach the state that is carried "
    "over (`hidden = hidden.detach()`, a running loss or average with `.item()`), and do not give "
    "backward `retain_graph=True`, which only hides the error that would say so",
)
_HOOKS = (
    "see how often the hook is registered: each registration adds one more call of it. Register it "
    "once, before the loop, or keep what `register_forward_hook` returns and call its remove()"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for found in step_change.group_parts(rows, _FEW):
        parts = _join(found, int(limits.parts))
        if len(parts) >= limits.parts:
            yield from _judge_process(parts, limits)


def _join(rows: list[Any], count: int) -> list[Any]:
    """Return so many parts with about as many steps in each."""
    every, done, found = sum(row.steps for row in rows), 0, [] if not rows else [rows[0]]
    for at, row in enumerate(rows):
        if at and done * count < len(found) * every:
            found[-1] = step_change.add_parts(found[-1], row)
        elif at:
            found.append(row)
        done += row.steps
    return found


def _judge_process(parts: list[Any], limits: Limits) -> Iterator[Verdict]:
    third = len(parts) // 3
    before, middle, after = parts[:third], parts[third:-third], parts[-third:]
    values = [step_change.find_net(part) for part in parts]
    old_s, mid_s, new_s = (
        median(map(step_change.find_net, side)) for side in (before, middle, after)
    )
    grows = old_s * limits.times**0.5 <= mid_s <= new_s / limits.times**0.25
    fired = 0 < old_s * limits.times <= new_s and grows and find_order(values) >= limits.order
    cause = _explain(before, after, new_s - old_s, limits) if fired else Growth("", "", "", "info")
    evidence = {"step_first_ns": 1e9 * old_s, "step_last_ns": 1e9 * new_s,
                "times_as_long": new_s / old_s if old_s > 0 else None}  # fmt: skip
    for piece in sorted({part.piece for part in parts}):
        yield Verdict(
            piece, fired, evidence, severity=cause.severity, title=cause.title, todo=cause.todo,
            readings=sum(part.steps for part in parts if part.piece == piece), line=cause.line,
            who="" if parts[0].rank is None else f"rank {parts[0].rank}",
        )  # fmt: skip


class Growth(NamedTuple):
    """What takes longer, as far as it is known."""

    title: str
    todo: str
    line: str
    severity: str


def _explain(before: list[Any], after: list[Any], added_s: float, limits: Limits) -> Growth:
    """Return what takes longer. If the forward pass grows with the backward one, the model is given
    more to do, as longer texts later on: that may be meant."""
    what, line = step_change.explain(before, after, added_s, limits)
    forward, backward, whole = (
        [median(getattr(part, name) for part in side) for side in (before, after)]
        for name in ("forward_s", "backward_s", "step_s")
    )
    all_s = whole[1] - whole[0]
    is_backward = 100 * (backward[1] - backward[0]) >= limits.backward_pct * all_s > 0
    if is_backward and backward[1] * forward[0] >= limits.times * backward[0] * forward[1]:
        return Growth(*_BACKWARD, line or step_change.find_top_line(after), "warning")
    in_model_s = forward[1] - forward[0] + backward[1] - backward[0]
    title = f"Each step takes longer than the one before: the program {what}" if what else ""
    todo = _HOOKS if what.endswith(step_change.HOOK) else ""
    return Growth(title, todo, line, "warning" if line and 2 * in_model_s < all_s else "info")
