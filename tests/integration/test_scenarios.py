"""Programs with a planted cause: the right rule fires and no wrong one does.

A few of tests/scenarios, once each; `python tests/scenarios/run.py` runs all of them ten times."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde import plugins
from support.needs import need
from support.shared import Scenario, list_names, record_scenario

need("torch")

# The causes that users have most often, and a loop that has none.
CHOSEN = ("deadlock", "starved_loader", "gc_storm", "lock_fight", "gil_fight", "list_search",
          "pool_in_pool", "healthy_shop", "healthy_torch")  # fmt: skip


def check(scenario: Scenario, root: Path) -> None:
    right, wrong = scenario.check(scenario.advise(root))
    assert right
    # What is only worth mentioning may be true on a busy machine.
    assert [one for one in wrong if not one.endswith("(info)")] == []


@pytest.mark.parametrize("name", CHOSEN)
def test_the_right_rule_fires_and_no_wrong_one(name: str, tmp_path_factory) -> None:
    check(Scenario(name), record_scenario(tmp_path_factory, name))


def test_each_scenario_names_a_rule_that_is_there() -> None:
    named = {Scenario(name).rule for name in list_names()} - {None, "places"}  # where the time went
    assert named <= set(plugins.list_names("advice.rules"))


# ---- workers that use up the processors -----------------------------------------------------------


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> Path:
    """A recording of the loop and of its workers."""
    return record_scenario(tmp_path_factory, "busy_workers")


def test_workers_that_use_up_the_processors_are_told_by_their_stacks(busy: Path) -> None:
    check(Scenario("busy_workers"), busy)


def test_and_by_what_the_kernel_says_where_their_stacks_are_not_there(busy: Path) -> None:
    (job,) = (one for one in sonde.open(str(busy)).sessions if one.meta.parent is None)
    (found,) = sonde.advise(job.folder, piece_s=1.0, rules=["input_bound"]).findings
    assert found.evidence["workers"] == 2
    assert "CPU" in found.title
