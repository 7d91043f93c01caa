"""The budget of the torch source, against simulated jobs whose true cost is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from sonde import _core
from sonde.job.torch.budget import Budget
from sonde.job.torch.budget_evidence import Ratios
from sonde.job.torch.budget_levels import EVERYTHING, StepPlan, list_levels
from sonde.tables.overhead import Overhead

STEP_NS = 30_000_000
LIMIT = 1.0


def is_baseline(step: int) -> bool:
    """Is this step left out, to be compared with? By its number alone, so that all ranks agree."""
    return _core.torch_plan(step, True, 1, 0, 0) == 0


@dataclass
class Job:
    """Steps with noise, and what recording one with everything adds to it."""

    cost_pct: float
    noise_pct: float = 2.0
    direct: float = 0.8  # the share of the cost that the recording sees itself
    device: float = 0.5  # the share of the cost that is GPU times
    tails: float = 0.0  # the share of steps that take much longer
    drift: float = 0.0
    slow_every: int = 0  # a checkpoint
    deep: int = 8
    base_pct: float = 0.0  # what every step costs, recorded or not
    lost: float = 0.0  # the share of steps in which our own code loses the processor
    seed: int = 1

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def bare_ns(self, step: int) -> float:
        noise = math.exp(self._chance.gauss(0, self.noise_pct / 100))
        if self._chance.random() < self.tails:
            noise *= 1.1 + min(20.0, self._chance.paretovariate(1.5) - 1)
        if self.slow_every and step % self.slow_every == 0:
            noise *= 6
        return STEP_NS * noise * (1 + self.drift * math.sin(step / 500))

    def cost_ns(self, plan: StepPlan) -> float:
        if not plan.on:
            return 0.0
        share = (min(plan.depth, self.deep) + 1) / (self.deep + 1)
        kinds = (1 - self.device) + (self.device if plan.detail else 0)
        return STEP_NS * self.cost_pct / 100 * kinds * share

    def every_ns(self) -> float:
        lost = self._chance.random() < self.lost
        return STEP_NS * self.base_pct / 100 + (STEP_NS / 3 if lost else 0)


@dataclass
class Story:
    """What became of a job."""

    levels: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    rows: int = 0

    def overhead_pct(self, last: int) -> float:
        return 100 * sum(self.costs[-last:]) / sum(self.bare[-last:])

    def count_moves(self) -> int:
        return sum(a != b for a, b in pairwise(self.levels))


def play(budget: Budget, job: Job, steps: int, first: int = 0) -> Story:
    story = Story()
    for step in range(first, first + steps):
        plan = budget.plan(step)
        bare, cost = job.bare_ns(step), job.cost_ns(plan)
        every_ns = job.every_ns()
        spent = round(cost * job.direct + every_ns)
        story.rows += budget.note(step, round(bare + cost + every_ns), plan, spent)
        story.levels.append(budget.level)
        story.costs.append(cost)
        story.bare.append(bare)
    return story


WORLDS: dict[str, dict[str, float]] = {
    "plain": {},
    "heavy tails": {"tails": 0.05},
    "drift": {"drift": 0.3},
    "checkpoints": {"slow_every": 100},
    "all of it": {"tails": 0.05, "drift": 0.3, "slow_every": 100},
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("noise", [1.0, 5.0])
@pytest.mark.parametrize("cost", [0.0, 0.5])
def test_a_cost_under_the_budget_keeps_every_detail(cost: float, noise: float, world: str) -> None:
    story = play(Budget(LIMIT), Job(cost, noise, **WORLDS[world]), 4000)
    assert set(story.levels) == {0}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("noise", [1.0, 5.0])
@pytest.mark.parametrize("cost", [2.0, 10.0])
def test_a_cost_over_the_budget_goes_under_it_and_stays(
    cost: float, noise: float, world: str
) -> None:
    story = play(Budget(LIMIT), Job(cost, noise, **WORLDS[world]), 5000)
    # A tenth: so close to the limit it takes more steps than these to be sure.
    assert story.overhead_pct(3000) <= 1.1 * LIMIT
    assert story.count_moves() <= 8
    assert 0 < max(story.levels) < len(list_levels(EVERYTHING, True)) - 1


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_a_cost_that_the_recording_does_not_see_is_found_by_baseline_steps(noise: float) -> None:
    job = Job(10.0, noise, direct=0.0, tails=0.05, slow_every=100)
    story = play(Budget(LIMIT), job, 4000)
    assert story.overhead_pct(2000) <= LIMIT
    assert story.count_moves() <= 6


def test_a_gross_overload_is_ended_within_a_few_steps_by_its_own_word() -> None:
    story = play(Budget(LIMIT), Job(200.0, 5.0), 60)
    assert story.levels[10] > 0
    assert story.overhead_pct(40) < 200 / 10
    later = play(Budget(LIMIT), Job(200.0, 5.0), 4000)
    assert later.overhead_pct(2000) <= LIMIT


def test_what_every_step_costs_leaves_less_for_the_rest_but_never_nothing() -> None:
    job = Job(1.2, 1.0, direct=1.0, device=0.0, base_pct=0.5)
    story = play(Budget(LIMIT, has_detail=False), job, 4000)
    assert story.levels[-1] == 2 and story.overhead_pct(2000) <= 0.5  # of 0.5 that are left
    dear = play(Budget(LIMIT, has_detail=False), Job(0.2, 1.0, base_pct=5.0), 4000)
    assert dear.levels[-1] == 0  # what every step costs is known once there are others
    dearer = play(Budget(LIMIT, has_detail=False), Job(2.0, 1.0, base_pct=5.0), 4000)
    assert 3 <= dearer.levels[-1] <= 4 and dearer.overhead_pct(2000) <= 0.3


def test_losing_the_processor_inside_our_code_is_not_taken_for_a_cost() -> None:
    story = play(Budget(LIMIT), Job(0.3, 2.0, base_pct=0.1, lost=0.02), 4000)
    assert set(story.levels) == {0}


@pytest.mark.parametrize("has_detail", [True, False])
def test_ten_times_too_much_is_left_in_one_or_two_moves(has_detail: bool) -> None:
    story = play(Budget(LIMIT, has_detail=has_detail), Job(10.0, 2.0), 100)
    assert 1 <= story.count_moves() <= 2
    assert story.overhead_pct(50) <= LIMIT


def test_detail_comes_back_when_the_overload_is_over_and_not_at_once() -> None:
    budget = Budget(LIMIT)
    heavy = play(budget, Job(10.0, 1.0), 1000)
    assert heavy.levels[-1] >= 3
    light = play(budget, Job(0.2, 1.0), 9000, 1000)
    assert light.levels[-1] == 0
    assert light.levels[150] == heavy.levels[-1]
    assert light.levels == sorted(light.levels, reverse=True)


def test_a_cost_that_comes_and_goes_does_not_make_it_flap() -> None:
    budget, moves = Budget(LIMIT), []
    for turn in range(20):
        story = play(budget, Job(0.1 if turn % 2 else 4.0, 1.0, seed=turn), 1000, turn * 1000)
        moves.append(story.count_moves())
    assert sum(moves[10:]) <= sum(moves[:10])
    assert sum(moves) <= 40


def test_the_estimate_holds_the_truth() -> None:
    for cost in (0.0, 0.8, 5.0):
        budget = Budget(100.0)  # so that nothing is left out
        play(budget, Job(cost, 2.0, tails=0.05, drift=0.1, slow_every=100), 6000)
        _t, _step, source, middle, low, high, direct, limit, level, plan, baselines = (
            budget.describe(7)
        )
        recorded = cost * 19 / 20
        assert low <= recorded <= high and high - low < 1.5
        assert abs(middle - recorded) < 0.5
        assert direct == pytest.approx(0.8 * recorded, rel=0.25)
        assert (source, limit, level, plan) == ("torch", 100.0, 0, "every step")
        assert 250 <= baselines <= 310


def test_median_and_interval_do_not_depend_on_the_shape_of_the_noise() -> None:
    chance, ratios = random.Random(3), Ratios()
    for _ in range(3000):
        a, b = (1e6 * (1 + chance.paretovariate(1.1)) for _ in range(2))
        ratios.add(round(1.03 * a), round(b))
    found = ratios.read(2.0)
    assert found is not None
    assert found[1] <= 0.03 <= found[2]


def test_the_middle_of_few_ratios_is_not_known() -> None:
    ratios = Ratios()
    for _ in range(15):
        ratios.add(11, 10)
    assert ratios.read(2.0) is None
    ratios.add(11, 10)
    found = ratios.read(2.0)
    assert found is not None and found[0] == pytest.approx(0.1, abs=0.001)


# ---- which steps ---------------------------------------------------------------------------------


def iter_ranks() -> Iterator[Callable[[int], StepPlan]]:
    for level in range(len(list_levels(EVERYTHING, True))):
        budget = Budget(LIMIT)
        budget.level = level
        yield budget.plan


def test_all_ranks_leave_out_the_same_steps_on_every_level() -> None:
    ranks = list(iter_ranks())
    for step in range(4000):
        assert {rank(step).baseline for rank in ranks} == {is_baseline(step)}
        assert all(not rank(step).on for rank in ranks if is_baseline(step))


def test_what_a_lower_level_records_the_higher_ones_record_too() -> None:
    ranks = list(iter_ranks())
    for step in range(4000):
        plans = [rank(step) for rank in ranks]
        for upper, lower in pairwise(plans):
            assert upper.on >= lower.on
            assert not lower.detail or lower.on
            assert not (upper.on and lower.on) or upper.depth >= lower.depth


def test_one_step_in_twenty_is_a_baseline_but_none_of_the_first() -> None:
    baselines = [step for step in range(20_000) if is_baseline(step)]
    assert baselines[0] >= 10
    assert 990 <= len(baselines) <= 1000
    for period in (2, 5, 10, 20, 100):  # no rhythm: every beat has its share
        shares = [sum(step % period == beat for step in baselines) for beat in range(period)]
        assert max(shares) < 2.5 * len(baselines) / period


@pytest.mark.parametrize("level", range(13))
def test_a_level_records_the_share_that_it_says(level: int) -> None:
    recorded = list_levels(EVERYTHING, True)[level]
    budget = Budget(LIMIT)
    budget.level = level
    plans = [budget.plan(step) for step in range(20_000)]
    bare, full = recorded.share(1, True)
    assert sum(plan.on for plan in plans) == pytest.approx(20_000 * (bare + full), rel=0.2)
    assert sum(plan.detail for plan in plans) == pytest.approx(20_000 * full, rel=0.4)


def test_settings_bound_what_is_recorded() -> None:
    budget = Budget(LIMIT, depth=2, every=5, has_detail=False)
    plans = [budget.plan(step) for step in range(1000)]
    assert {plan.depth for plan in plans if plan.on} == {2}
    assert 180 <= sum(plan.on for plan in plans) <= 200
    assert [level.depth for level in list_levels(2, False)][-1] == 0
    words = [level.describe(5) for level in list_levels(2, False)]
    assert words[0] == "1 step in 5, modules to depth 2" and len(set(words)) == len(words)


def test_without_a_limit_every_step_is_recorded_whatever_it_costs() -> None:
    budget = Budget(0)
    story = play(budget, Job(300.0), 500)
    assert set(story.levels) == {0} and min(story.costs) > 0
    assert budget.describe(0)[3:6] == (None, None, None)
    assert budget.describe(0)[6] == pytest.approx(60, rel=0.1)  # 2.4 of 4 parts


def test_new_settings_begin_anew_and_the_same_ones_change_nothing() -> None:
    budget = Budget(LIMIT)
    play(budget, Job(10.0, 1.0), 200)
    level = budget.level
    budget.configure(LIMIT, EVERYTHING, 1, True)
    assert budget.level == level > 0
    budget.configure(20.0, EVERYTHING, 1, True)
    assert budget.level == 0


# ---- edges ---------------------------------------------------------------------------------------


def test_steps_without_duration_or_out_of_order_do_no_harm() -> None:
    budget = Budget(LIMIT)
    for step in (0, 5, 5, 3, 100, 101, 2**62, 2**62 + 1):
        plan = budget.plan(step)
        for duration_ns, direct_ns in ((0, 0), (-5, 3), (1, 0), (1, 10**12), (10**18, -1)):
            budget.note(step, duration_ns, plan, direct_ns)
    budget.describe(0)


def test_memory_stays_what_it_was() -> None:
    budget = Budget(LIMIT)
    play(budget, Job(0.5, 5.0, tails=0.1), 30_000)
    counts = [len(ratios._counts) for ratios in budget._ratios.values()]
    assert max(counts) <= 12_001 and budget._ratios[2].total <= 8192
    assert len(budget._neighbours._window) <= 4


def test_a_row_is_due_when_the_level_changes_and_every_ten_seconds_of_steps() -> None:
    calm = play(Budget(LIMIT), Job(0.0, 1.0), 3400)
    assert calm.rows == pytest.approx(3400 * STEP_NS / 1e10, abs=1)
    busy = play(Budget(LIMIT), Job(10.0, 1.0), 100)
    assert busy.rows == busy.count_moves() >= 1
    assert len(Budget(LIMIT).describe(0)) == len(Overhead.__annotations__)
