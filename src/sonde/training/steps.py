"""When a step of training or inference ends, and who wants to know."""

from __future__ import annotations

from collections.abc import Callable

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Listener: TypeAlias = Callable[["Step"], object]

# What can end a step, the surest last.
ROOT = "root"  # the model that began the step is called again, and nothing else ends steps
OPTIMIZER = "optimizer"  # an optimizer has made its step
USER = "user"  # sonde.step()
END = "end"  # the recording is over
# The user's word is given up after this many ends of other kinds, and so many times the most that
# came between two of it. A count and no time: so every rank gives it up at the same step.
_PATIENCE, _ROUNDS = 16, 4


class Step:
    """A step that has just ended."""

    __slots__ = ("begin_ns", "end_ns", "kind", "number")

    def __init__(self, number: int, begin_ns: int, end_ns: int, kind: str) -> None:
        self.number, self.begin_ns, self.end_ns, self.kind = number, begin_ns, end_ns, kind


class Steps:
    """Counts the steps of this process; each listener is called in the thread that ends one, right
    after its end, and must be quick and raise nothing: wrap it in `host.guard`.

    Once the user has said where a step ends, optimizers and models end none any more: two of them
    may be in one step, or none. But whoever has said it while training may not say it while the
    model is evaluated afterwards, and that must not become one endless step. So when far more
    ends of other kinds came than ever between two words of the user, they count again, until the
    next such word. Between optimizers and models whoever reports the end of one decides."""

    def __init__(self) -> None:
        self.number = 0  # of the step that is under way
        self.begin_ns = 0  # 0: before the first end of one
        self.last = ""  # what ended the last one
        self.whole = False  # somebody wants all of the steps to come, whatever it costs
        self._listeners: tuple[Listener, ...] = ()
        self._ignored = self._most_ignored = 0  # since the user's last word; and ever between two

    def subscribe(self, listener: Listener) -> None:
        """Have `listener(step)` called at the end of every step."""
        self._listeners = (*self._listeners, listener)

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    def end(self, kind: str) -> int | None:
        """The step that was under way is over, and the next one begins. Its number; None if it is
        not over, or if nobody wants to know."""
        if not self._listeners or self._is_ignored(kind):
            return None
        now_ns = _core.clock_ns()
        ended = Step(self.number, self.begin_ns, now_ns, kind)
        self.number += 1
        self.begin_ns, self.last = now_ns, kind
        for listener in self._listeners:
            listener(ended)
        return ended.number

    def _is_ignored(self, kind: str) -> bool:
        if kind == USER:
            if self.last == USER:
                self._most_ignored = max(self._most_ignored, self._ignored)
            self._ignored = 0
        elif self.last == USER and kind != END:
            self._ignored += 1
            return self._ignored <= _PATIENCE + _ROUNDS * self._most_ignored
        return False


steps = Steps()


def step() -> int | None:
    """A step of training or inference is over: sonde splits the time of the program into steps, and
    finds their ends at optimizers and models by itself; this says it.

    From then on nothing else ends steps, unless you stop saying it. The number of the step that is
    over, as in python.torch_step; None if the program is not being recorded."""
    return steps.end(USER)
