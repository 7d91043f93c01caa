"""The budget: how much is recorded, such that recording costs no more than it may."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot

from sonde.training.ladder import EVERYTHING, SHADOW, Plan, Rung, choose, is_shadow, make_ladder
from sonde.training.shadow import Neighbours, Ratios

_BARE, _FULL = 1, 2  # kinds of recorded steps: modules, and modules with GPU times
_FIRST = 3  # steps in which things are made and named: they say nothing
_QUICK = 3  # recorded steps after which a gross overload is believed
_GROSS = 1.5  # so many times the budget is gross
_STEADY = 64  # steps after which the measured cost itself is believed
_JUDGE_EVERY = 16  # comparisons between two looks at them
_SURE, _SHOWN = 2.5, 2.0  # standard deviations: to act on, because it is looked at often; to show
_ROOM = 0.75  # a rung is climbed only if it would cost no more than this much of the budget, and
# left only if it costs more for sure: so nothing goes up and down
_PATIENCE, _MOST_PATIENCE = 256, 2**15  # steps on a rung before the next one up is tried
_ROW_NS = 10_000_000_000  # of steps between two rows


class Budget:
    """Chooses what is recorded of each step, and learns from what the step then took.

    Two measures. What the recording itself says it took is exact and there at once, but is not all:
    caches it empties and GPUs it holds up are not in it. Steps without recording show all, after
    some hundreds of steps. Whichever says that too much is spent is believed; both must agree
    before more is recorded again, and each return to a level that was too much waits twice as long
    as the one before."""

    def __init__(
        self, limit_pct: float, depth: int = EVERYTHING, every: int = 1, has_device: bool = True
    ) -> None:
        self._given: tuple[object, ...] = ()
        self._steps = self._recorded = 0  # on this level
        self._direct_ns = self._whole_ns = 0
        self._unjudged = 0  # comparisons since they were last looked at
        self.configure(limit_pct, depth, every, has_device)

    def configure(self, limit_pct: float, depth: int, every: int, has_device: bool) -> None:
        """Take over settings; if any is new, all that was learned is forgotten."""
        given = (limit_pct, depth, every, has_device)
        if self._given == given:
            return
        self._given = given
        self.limit_pct, self._every = max(0.0, limit_pct), max(1, every)
        self._ladder = make_ladder(depth, has_device)
        self._waits = [_PATIENCE] * len(self._ladder)
        self._noted, self._last_step, self._row_ns = 0, 0, 0
        self._neighbours = Neighbours()
        self.level = 0
        self._forget()
        self._move(0)

    def plan(self, step: int) -> Plan:
        """What to record of the step that begins: by its number and the level alone."""
        # Without a limit nothing is left out, also not to measure.
        if self.limit_pct and is_shadow(step):
            return SHADOW
        return choose(step, self._ladder[self.level], self._every)

    def note(self, step: int, duration_ns: int, plan: Plan, direct_ns: int) -> bool:
        """A step is over: how long it took, how it was planned, and how much of it the recording
        itself says it took. Is there something new to write down?"""
        if duration_ns <= 0:
            return False
        self._noted += 1
        self._last_step = step
        self._row_ns += duration_ns
        if self._noted > _FIRST:
            self._learn(step, duration_ns, plan, max(0, direct_ns))
            if self.limit_pct and (self._react() or self._judge()):
                self._row_ns = _ROW_NS
        if self._row_ns < _ROW_NS:
            return False
        self._row_ns = 0
        return True

    def describe(self, t_ns: int) -> tuple[object, ...]:
        """The values of a row of Overhead."""
        rung = self._ladder[self.level]
        seen = self._compare(rung, _SHOWN) or (None, None, None)
        return (
            t_ns, self._last_step, "torch", *seen, self._read_direct(), self.limit_pct, self.level,
            rung.describe(self._every), self._shadows,
        )  # fmt: skip

    # ---- what is known -----------------------------------------------------------------------

    def _forget(self) -> None:
        """What a recorded step costs is not known any more."""
        self._recent: dict[int, list[float]] = {_BARE: [], _FULL: []}
        self._ratios = {_BARE: Ratios(), _FULL: Ratios()}
        self._shadows = 0
        self._neighbours.clear()

    def _learn(self, step: int, duration_ns: int, plan: Plan, direct_ns: int) -> None:
        kind = 0 if not plan.on else _FULL if plan.device else _BARE
        if kind:
            self._recorded += 1
            recent = self._recent[kind]
            recent.append(direct_ns / duration_ns)
            if len(recent) > 5:
                del recent[0]
                # Whoever loses the processor inside our code does not do so because of us.
                direct_ns = min(direct_ns, round(8 * _middle(recent) * duration_ns))
        self._steps += 1
        self._direct_ns += direct_ns
        self._whole_ns += duration_ns
        if self._steps % 512 == 0:
            self._direct_ns, self._whole_ns = self._direct_ns // 2, self._whole_ns // 2
        used = self._neighbours.add(step, duration_ns, kind, self._ratios)
        self._shadows += used
        self._unjudged += used

    def _read_direct(self) -> float:
        """Percent, on this level so far; as expected of it, if it is new."""
        if not self._whole_ns:
            return self._expect_direct(self._ladder[self.level])
        return 100 * self._direct_ns / self._whole_ns

    def _expect_direct(self, rung: Rung) -> float:
        """Percent that the recording itself would take on a rung."""
        known = {kind: _middle(recent) for kind, recent in self._recent.items() if recent}
        if not known:
            return 0.0
        bare, full = (known.get(kind, max(known.values())) for kind in (_BARE, _FULL))
        shares = rung.share(self._every, bool(self.limit_pct))
        return 100 * (shares[0] * bare + shares[1] * full) * self._guess_depth(rung)

    def _compare(self, rung: Rung, sure: float) -> tuple[float, float, float] | None:
        """Percent that steps would take longer on a rung, and an interval; None: not known yet."""
        seen = {kind: ratios.read(sure) for kind, ratios in self._ratios.items()}
        bare, full = seen[_BARE] or seen[_FULL], seen[_FULL] or seen[_BARE]
        if bare is None or full is None:
            return None
        shares = rung.share(self._every, True)
        middle = shares[0] * bare[0] + shares[1] * full[0]
        below, above = (
            hypot(shares[0] * (bare[0] - bare[at]), shares[1] * (full[0] - full[at]))
            for at in (1, 2)
        )
        scale = 100 * self._guess_depth(rung)
        return scale * middle, scale * (middle - below), scale * (middle + above)

    def _guess_depth(self, rung: Rung) -> float:
        """What a step costs on a rung, if here it costs 1: each cut of the depth halves it."""
        return float(2.0 ** (self._ladder[self.level].cuts - rung.cuts))

    # ---- what is done ------------------------------------------------------------------------

    def _react(self) -> bool:
        """Down, if the recording itself takes too much: at once if it is gross."""
        rung = self._ladder[self.level]
        # At first each time; then now and then, for it is most of what a step costs us here.
        if self._recorded < _QUICK or (self._recorded > 8 and self._recorded % 8):
            return False
        gross = self._expect_direct(rung) > _GROSS * self.limit_pct
        steady = self._steps >= _STEADY and self._read_direct() > self.limit_pct
        if not (gross or steady):
            return False
        return self._descend(self._expect_direct)

    def _judge(self) -> bool:
        """Down, if steps beside each other say that it is too much; else maybe up."""
        if self._unjudged < _JUDGE_EVERY:
            return False
        self._unjudged = 0
        found = self._compare(self._ladder[self.level], _SURE)
        room_pct = _ROOM * self.limit_pct
        if found is not None and found[0] > self.limit_pct and found[1] > room_pct:
            return self._descend(lambda lower: (self._compare(lower, _SURE) or (0.0,))[0])
        return self._climb()

    def _descend(self, expect: Callable[[Rung], float]) -> bool:
        """To the first level below that is expected to be cheap enough."""
        last = len(self._ladder) - 1
        if self.level == last:
            return False
        fits = (at for at in range(self.level + 1, last) if self._fits(expect(self._ladder[at])))
        target = next(fits, last)
        if not self._recent[_BARE]:
            # What is spent may all be GPU times: stop where they are rare, and see.
            rare = max(at for at, rung in enumerate(self._ladder) if rung.steps == 0)
            target = min(target, max(rare, self.level + 1))
        self._waits[self.level] = min(2 * self._waits[self.level], _MOST_PATIENCE)
        self._move(target)
        return True

    def _fits(self, pct: float) -> bool:
        return pct <= 0.9 * self.limit_pct

    def _climb(self) -> bool:
        """One level up, if there is room, and it was long enough ago that there was none."""
        if self.level == 0 or self._steps < self._waits[self.level - 1]:
            return False
        upper, room_pct = self._ladder[self.level - 1], _ROOM * self.limit_pct
        found = self._compare(upper, 1.0)
        if self._expect_direct(upper) > room_pct or (found is not None and found[1] > room_pct):
            return False
        self._move(self.level - 1)
        return True

    def _move(self, level: int) -> None:
        if self._ladder[level].cuts != self._ladder[self.level].cuts:
            self._forget()
        self.level = level
        self._steps = self._recorded = self._unjudged = 0
        self._direct_ns = self._whole_ns = 0


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
