"""The levels of recording: how much is recorded, and in which steps."""

from __future__ import annotations

EVERYTHING = 1000  # deeper than any module: the default of torch.depth
_BASELINE_EVERY = 20  # one step in this many is not recorded, to measure the cost; see step_plan.c


# Kinds of steps: nothing is recorded, modules are, or modules with detail.
NONE, BARE, FULL = 0, 1, 2


class StepPlan:
    """What to record of one step."""

    __slots__ = ("baseline", "depth", "detail", "kind", "on")

    def __init__(self, on: bool, depth: int, detail: bool, baseline: bool = False) -> None:
        self.on = on  # whether modules are recorded at all
        self.depth = depth  # of the deepest modules; 0 is the module that the program calls
        self.detail = detail  # whether to record backward by module, and GPU times
        self.baseline = baseline  # off only so that recorded steps can be compared with it
        self.kind = NONE if not on else FULL if detail else BARE


BASELINE = StepPlan(False, 0, False, True)
OFF = StepPlan(False, 0, False)
WHOLE = StepPlan(True, EVERYTHING, True)


class Level:
    """One way to record: one step in 2^steps, to a depth; of those, one in 2^detail in detail."""

    __slots__ = ("bare", "cuts", "depth", "detail", "full", "steps")

    def __init__(self, steps: int, detail: int, depth: int) -> None:
        self.steps, self.detail, self.depth = steps, detail, depth
        self.cuts = 0  # how often the depth was reduced on the way to this level
        self.full, self.bare = StepPlan(True, depth, True), StepPlan(True, depth, False)

    def is_like(self, other: Level) -> bool:
        """Return whether both levels record the same."""
        return (self.steps, self.detail, self.depth) == (other.steps, other.detail, other.depth)

    def list_plans(self) -> tuple[StepPlan, ...]:
        """Return the plans of this level, in the order of `_core.torch_plan`."""
        return BASELINE, OFF, self.bare, self.full, WHOLE

    def share(self, every: int, baseline: bool) -> tuple[float, float]:
        """Return the share of steps recorded with modules only, and the share with detail."""
        recorded = (1 - 1 / _BASELINE_EVERY if baseline else 1.0) / every / 2**self.steps
        detail = recorded / 2**self.detail
        return recorded - detail, detail

    def describe(self, every: int) -> str:
        """Return a description for people."""
        words = [_one_in(every << self.steps, "every step", "1 step in")]
        if self.detail:
            words.append(
                _one_in(every << self.steps + self.detail, "", "backward and GPU times 1 in")
            )
        if self.depth != EVERYTHING:
            words.append(f"modules to depth {self.depth}")
        return ", ".join(words)


def _one_in(number: int, always: str, words: str) -> str:
    return always if number == 1 else f"{words} {number}"


# Detail goes first: it costs most and varies least between steps. Users miss single steps less than
# they miss modules, so depth goes last.
_LEVELS = (
    (0, 0, EVERYTHING), (0, 2, EVERYTHING), (0, 4, EVERYTHING), (1, 3, EVERYTHING),
    (2, 2, EVERYTHING), (3, 2, EVERYTHING), (4, 2, EVERYTHING),
    (4, 2, 4), (4, 2, 2), (4, 2, 1), (4, 2, 0), (6, 2, 0), (8, 2, 0),
)  # fmt: skip


def list_levels(depth: int, has_detail: bool) -> list[Level]:
    """Return the distinct levels if no module deeper than `depth` is wanted."""
    levels: list[Level] = []
    for steps, detail, deepest in _LEVELS:
        level = Level(steps, detail if has_detail else 0, min(deepest, depth))
        if not levels:
            levels.append(level)
        elif not level.is_like(levels[-1]):
            level.cuts = levels[-1].cuts + (level.depth != levels[-1].depth)
            levels.append(level)
    return levels
