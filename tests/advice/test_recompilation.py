"""Which steps that compile are worth a warning: on rows as the rule's query returns them."""

from __future__ import annotations

from collections import namedtuple

import pytest

from sonde.advice.rules import recompilation
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in recompilation.LIMITS.items()})
USUAL = {
    "piece": 0, "rank": None, "steps": 40, "compiled": 90, "now": 30, "share_pct": 66.0,
    "file": "/job/train.py", "lineno": 24, "func": "forward",
}  # fmt: skip
Row = namedtuple("Row", USUAL)


def judge(**changes: object) -> Verdict:
    (verdict,) = recompilation.judge([Row(**USUAL | changes)], LIMITS)
    return verdict


def test_steps_that_compile_are_told_with_their_line() -> None:
    found = judge()
    assert found.fired and found.lost_pct == 66
    assert found.line == "/job/train.py:24 in forward"
    assert found.evidence["steps_that_compile"] == 30


@pytest.mark.parametrize("change", [{"compiled": 2}, {"share_pct": 3.0}])
def test_the_first_steps_may_compile_and_later_ones_a_little(change: dict[str, object]) -> None:
    assert not judge(**change).fired
