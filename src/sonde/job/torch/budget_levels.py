"""How much is recorded, from everything to next to nothing, and of which steps."""

from __future__ import annotations

from sonde import _core

EVERYTHING = 1000  # deeper than any module; what torch.depth is unless it is set
_SHADOW = 20  # one step in so many is not recorded, to see what recording costs: torch_plan.c


# Kinds of steps: nothing is recorded, modules are, or modules with detail.
NONE, BARE, FULL = 0, 1, 2


class Plan:
    """What is recorded of one step."""

    __slots__ = ("depth", "detail", "kind", "on", "shadow")

    def __init__(self, on: bool, depth: int, detail: bool, shadow: bool = False) -> None:
        self.on = on  # modules at all
        self.depth = depth  # the deepest modules; 0 is the one that the program calls
        self.detail = detail  # backward by module, and GPU times
        self.shadow = shadow  # off only to be compared with
        self.kind = NONE if not on else FULL if detail else BARE


SHADOW = Plan(False, 0, False, True)
OFF = Plan(False, 0, False)
WHOLE = Plan(True, EVERYTHING, True)


def is_shadow(step: int) -> bool:
    """Is this step left out, to be compared with? By its number alone, so that all ranks agree."""
    return _core.torch_plan(step, True, 1, 0, 0) == 0


class Rung:
    """One way to record: one step in 2^steps, detail in one of 2^detail of those, to a depth."""

    __slots__ = ("bare", "cuts", "depth", "detail", "full", "steps")

    def __init__(self, steps: int, detail: int, depth: int) -> None:
        self.steps, self.detail, self.depth = steps, detail, depth
        self.cuts = 0  # how often the depth was made smaller up to here
        self.full, self.bare = Plan(True, depth, True), Plan(True, depth, False)

    def is_like(self, other: Rung) -> bool:
        """Do both record the same?"""
        return (self.steps, self.detail, self.depth) == (other.steps, other.detail, other.depth)

    def list_plans(self) -> tuple[Plan, ...]:
        """In the order in which `_core.torch_plan` counts them."""
        return SHADOW, OFF, self.bare, self.full, WHOLE

    def share(self, every: int, shadow: bool) -> tuple[float, float]:
        """Of all steps, those with modules only, and those with detail, too."""
        recorded = (1 - 1 / _SHADOW if shadow else 1.0) / every / 2**self.steps
        detail = recorded / 2**self.detail
        return recorded - detail, detail

    def describe(self, every: int) -> str:
        """For people."""
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


# Detail costs most and changes least from step to step; single steps are missed less than modules.
_RUNGS = (
    (0, 0, EVERYTHING), (0, 2, EVERYTHING), (0, 4, EVERYTHING), (1, 3, EVERYTHING),
    (2, 2, EVERYTHING), (3, 2, EVERYTHING), (4, 2, EVERYTHING),
    (4, 2, 4), (4, 2, 2), (4, 2, 1), (4, 2, 0), (6, 2, 0), (8, 2, 0),
)  # fmt: skip


def make_ladder(depth: int, has_detail: bool) -> list[Rung]:
    """The rungs that differ, where no module deeper than `depth` is wanted."""
    ladder: list[Rung] = []
    for steps, detail, deepest in _RUNGS:
        rung = Rung(steps, detail if has_detail else 0, min(deepest, depth))
        if not ladder:
            ladder.append(rung)
        elif not rung.is_like(ladder[-1]):
            rung.cuts = ladder[-1].cuts + (rung.depth != ladder[-1].depth)
            ladder.append(rung)
    return ladder
