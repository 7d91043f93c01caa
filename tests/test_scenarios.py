"""Programs with a planted cause: the right rule fires and no wrong one does.

A few of tests/scenarios, once each; `python tests/scenarios/run.py` runs all of them ten times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import sonde
from sonde import plugins

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parent / "scenarios"))
from run import Scenario, list_names

SECONDS = 6.0
# The causes that users have most often, and a loop that has none.
CHOSEN = ("starved_loader", "busy_workers", "gc_storm", "lock_fight", "gil_fight", "healthy_torch")


@pytest.mark.parametrize("name", CHOSEN)
def test_the_right_rule_fires_and_no_wrong_one(name: str, root: Path) -> None:
    scenario = Scenario(name)
    scenario.record(root, SECONDS)
    right, wrong = scenario.check(scenario.advise(root))
    assert right
    assert wrong == []


def test_each_scenario_names_a_rule_that_is_there() -> None:
    named = {Scenario(name).rule for name in list_names()} - {None}
    assert named <= set(plugins.list_names("advice"))


def test_the_cause_is_known_from_outside_where_the_workers_stacks_are_not_there(root: Path) -> None:
    scenario = Scenario("busy_workers")
    scenario.record(root, SECONDS)
    (job,) = (one for one in sonde.open(str(root)).sessions if one.meta.get("parent") is None)
    advice = sonde.advise(job.folder, window_s=1.0, rules=["input_bound"])
    assert [finding.evidence["workers"] for finding in advice.findings] == [2]
    assert "CPU" in advice.findings[0].title
