"""The budget: choose how much to record, so that recording costs no more than allowed."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot

from sonde import _core
from sonde.job.torch.budget_evidence import Neighbours, Ratios
from sonde.job.torch.budget_levels import BARE, EVERYTHING, FULL, NONE, Level, StepPlan, list_levels

_KEPT = (15, 5, 5)  # steps of each kind that are remembered
_FIRST = 3  # first steps, which are ignored because things are created and named in them
_FAR = 8  # a step that costs this many times what is usual for its kind was disturbed by others
_QUICK = 3  # recorded steps after which a gross overload is acted on
_GROSS = 1.5  # a cost of this many times the budget is a gross overload
_STEADY = 64  # steps after which the measured cost itself is acted on
_BATCH = 32  # steps evaluated at once from then on; the limit is in _core/torch/step_end.h
_JUDGE_EVERY = 16  # comparisons between two judgements
_SURE, _SHOWN = 2.5, 2.0  # standard deviations to act on (judgements are frequent), and to show
# More is recorded only if that costs no more than this share of the budget, and less only if the
# cost is certainly higher than it, so that the level does not oscillate.
_ROOM = 0.75
_PATIENCE, _MAX_PATIENCE = 256, 2**15  # steps on a level before the one above is tried
_ROW_NS = 10_000_000_000  # time of steps between two rows


class Budget:
    """Chooses what to record of each step, and learns from how long the steps take.

    There are two measures. The time that recording measures in its own code is exact and available
    at once, but incomplete: it lacks the effect on caches and the delays of GPUs. The comparison
    with steps that are not recorded is complete, but takes some hundreds of steps. If either says
    that too much is spent, less is recorded. Both must agree before more is recorded again, and
    each return to a level that was too expensive waits twice as long as the one before.

    Some time is spent on every step, recorded or not, and no level can save it. It is part of the
    budget, but always leaves a quarter for what is recorded: otherwise all detail would go, and
    nothing would be gained."""

    def __init__(
        self, limit_pct: float, depth: int = EVERYTHING, every: int = 1, has_detail: bool = True
    ) -> None:
        self._given: tuple[object, ...] = ()
        self._steps = self._recorded = 0  # on this level
        self._direct_ns = self._whole_ns = 0
        self._unjudged = 0  # comparisons since the last judgement
        self.configure(limit_pct, depth, every, has_detail)

    def configure(self, limit_pct: float, depth: int, every: int, has_detail: bool) -> None:
        """Apply settings; if any has changed, forget everything that was learned."""
        given = (limit_pct, depth, every, has_detail)
        if self._given == given:
            return
        self._given = given
        self.limit_pct, self._every = max(0.0, limit_pct), min(max(1, every), 2**31)
        self._levels = list_levels(depth, has_detail)
        self._waits = [_PATIENCE] * len(self._levels)
        self._noted, self._last_step, self._row_ns = 0, 0, 0
        self._pending: list[tuple[int, int, StepPlan, int]] = []
        self._neighbours = Neighbours()
        self._recent: list[list[float]] = [[], [], []]  # direct share of last steps, by kind
        self.level = 0
        self._forget()
        self._move(0)

    def plan(self, step: int) -> StepPlan:
        """Return what to record of a step, which depends only on its number and the level."""
        plans, baseline, every, steps, detail = self.steer()
        return plans[_core.torch_plan(step, baseline, every, steps, detail)]

    def steer(self) -> tuple[tuple[StepPlan, ...], bool, int, int, int]:
        """Return the plans of this level, and the rule that assigns one of them to each step."""
        level = self._levels[self.level]
        # Without a limit nothing is left out, not even to measure the cost.
        return level.list_plans(), bool(self.limit_pct), self._every, level.steps, level.detail

    @property
    def batch(self) -> int:
        """How many steps may be noted at once. After a step our code is no longer in any cache, so
        many at once cost little more than one."""
        return _BATCH if self._steps >= _STEADY else 1

    def note(self, step: int, duration_ns: int, plan: StepPlan, direct_ns: int) -> bool:
        """Note a step that has ended: how long it took, its plan, and the time that recording
        measured in its own code. Return whether a new row should be written."""
        return self.note_all([(step, duration_ns, plan, direct_ns)])

    def note_all(self, steps: list[tuple[int, int, StepPlan, int]], rested_ns: int = 0) -> bool:
        """Note several consecutive steps; see `note`. Those before them, which took `rested_ns`,
        were not noted."""
        self._row_ns += rested_ns
        for one in steps:
            if one[1] > 0:
                self._noted += 1
                self._row_ns += one[1]
                self._last_step = one[0]
                if self._noted > _FIRST:
                    self._pending.append(one)
        if self._pending and len(self._pending) >= self.batch:
            self._learn_pending()
        if self._row_ns < _ROW_NS:
            return False
        self._row_ns = 0
        return True

    def _learn_pending(self) -> None:
        pending, self._pending = self._pending, []
        for one in pending:
            self._learn(*one)
            # Checked here first, because most steps change nothing and a call costs time.
            is_due = self._is_react_due() or self._unjudged >= _JUDGE_EVERY
            if is_due and self.limit_pct and (self._react() or self._judge()):
                self._row_ns = _ROW_NS
                return  # the remaining steps were planned on another level

    def describe(self, t_ns: int) -> tuple[object, ...]:
        """Return the values of a row of Overhead."""
        level = self._levels[self.level]
        seen = self._compare(level, _SHOWN) or (None, None, None)
        return (
            t_ns, self._last_step, "torch", *seen, self._read_direct(), self.limit_pct, self.level,
            level.describe(self._every), self._compared,
        )  # fmt: skip

    # ---- evidence ----------------------------------------------------------------------------

    def _forget(self) -> None:
        """Forget what a recorded step costs."""
        self._recent[BARE], self._recent[FULL] = [], []
        self._ratios = {BARE: Ratios(), FULL: Ratios()}
        self._compared = 0
        self._neighbours.clear()

    def _learn(self, step: int, duration_ns: int, plan: StepPlan, direct_ns: int) -> None:
        direct_ns = max(0, direct_ns)
        kind, share = plan.kind, direct_ns / duration_ns
        self._recorded += plan.on
        recent = self._recent[kind]
        recent.append(share)
        if len(recent) > _KEPT[kind]:
            del recent[0]
            # A thread that is descheduled inside our code is not slow because of us. The median is
            # expensive to find and at least the minimum, so the minimum is checked first.
            if share > _FAR * min(recent):
                direct_ns = min(direct_ns, round(_FAR * _middle(recent) * duration_ns))
        self._steps += 1
        self._direct_ns += direct_ns
        self._whole_ns += duration_ns
        if self._steps % 512 == 0:
            self._direct_ns, self._whole_ns = self._direct_ns // 2, self._whole_ns // 2
        used = self._neighbours.add(step, duration_ns, kind, self._ratios)
        self._compared += used
        self._unjudged += used

    def _read_direct(self) -> float:
        """Return the percentage measured on this level so far, or the expected one if it is new."""
        if not self._whole_ns:
            return self._find_base() + self._expect_direct(self._levels[self.level])
        return 100 * self._direct_ns / self._whole_ns

    def _find_base(self) -> float:
        """Return the percentage that every step costs, recorded or not."""
        return 100 * _middle(self._recent[NONE])

    def _find_allowed(self) -> float:
        """Return the percentage that is left for what is recorded."""
        return max(self.limit_pct - self._find_base(), self.limit_pct / 4)

    def _expect_direct(self, level: Level) -> float:
        """Return the percentage that recording itself would add on a level."""
        known = [_middle(recent) for recent in self._recent]
        bare = known[BARE] or known[FULL]
        full = known[FULL] or known[BARE]
        shares = level.share(self._every, bool(self.limit_pct))
        extra = (max(0.0, one - known[NONE]) for one in (bare, full))
        spent = sum(share * one for share, one in zip(shares, extra, strict=True))
        return 100 * spent * self._guess_depth(level)

    def _compare(self, level: Level, sure: float) -> tuple[float, float, float] | None:
        """Return how much longer steps take on a level, in percent, and a confidence interval."""
        seen = {kind: ratios.read(sure) for kind, ratios in self._ratios.items()}
        bare, full = seen[BARE] or seen[FULL], seen[FULL] or seen[BARE]
        if bare is None or full is None:
            return None
        shares = level.share(self._every, True)
        middle = shares[0] * bare[0] + shares[1] * full[0]
        below, above = (
            hypot(shares[0] * (bare[0] - bare[at]), shares[1] * (full[0] - full[at]))
            for at in (1, 2)
        )
        scale = 100 * self._guess_depth(level)
        return scale * middle, scale * (middle - below), scale * (middle + above)

    def _guess_depth(self, level: Level) -> float:
        """Return the cost of a step on a level relative to the current one: each cut in depth is
        assumed to halve it."""
        return float(2.0 ** (self._levels[self.level].cuts - level.cuts))

    # ---- decisions ---------------------------------------------------------------------------

    def _is_react_due(self) -> bool:
        """Return whether to react now: always at first, then rarely, because reacting is costly."""
        recorded = self._recorded
        return not recorded % 8 if recorded > 8 else recorded >= _QUICK

    def _react(self) -> bool:
        """Record less if recording itself takes too long, and at once if it takes far too long."""
        if not self._is_react_due():
            return False
        level = self._levels[self.level]
        allowed_pct = self._find_allowed()
        gross = self._expect_direct(level) > _GROSS * allowed_pct
        steady = self._steps >= _STEADY and self._read_direct() - self._find_base() > allowed_pct
        if not (gross or steady):
            return False
        return self._descend(self._expect_direct)

    def _judge(self) -> bool:
        """Record less if neighbouring steps show that it costs too much; otherwise maybe more."""
        if self._unjudged < _JUDGE_EVERY:
            return False
        self._unjudged = 0
        found = self._compare(self._levels[self.level], _SURE)
        allowed_pct = self._find_allowed()
        if found is not None and found[0] > allowed_pct and found[1] > _ROOM * allowed_pct:
            return self._descend(lambda lower: (self._compare(lower, _SURE) or (0.0,))[0])
        return self._climb()

    def _descend(self, expect: Callable[[Level], float]) -> bool:
        """Go to the first lower level that is expected to be cheap enough."""
        last = len(self._levels) - 1
        if self.level == last:
            return False
        most_pct = 0.9 * self._find_allowed()
        below = range(self.level + 1, last)
        target = next((at for at in below if expect(self._levels[at]) <= most_pct), last)
        rare = max(at for at, level in enumerate(self._levels) if level.steps == 0)
        if rare > self.level and not self._recent[BARE]:
            # Detail may be the whole cost: go only to where detail is rare, and measure.
            target = min(target, rare)
        self._waits[self.level] = min(2 * self._waits[self.level], _MAX_PATIENCE)
        self._move(target)
        return True

    def _climb(self) -> bool:
        """Go one level up if there is room and the last attempt was long enough ago."""
        if self.level == 0 or self._steps < self._waits[self.level - 1]:
            return False
        upper, room_pct = self._levels[self.level - 1], _ROOM * self._find_allowed()
        found = self._compare(upper, 1.0)
        if self._expect_direct(upper) > room_pct or (found is not None and found[1] > room_pct):
            return False
        self._move(self.level - 1)
        return True

    def _move(self, level: int) -> None:
        if self._levels[level].cuts != self._levels[self.level].cuts:
            self._forget()
        self.level = level
        self._steps = self._recorded = self._unjudged = 0
        self._direct_ns = self._whole_ns = 0


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
