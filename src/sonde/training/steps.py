"""When a step of training or inference ends, and who wants to know."""

from __future__ import annotations

from collections.abc import Callable

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Listener: TypeAlias = Callable[["Step"], object]

# What can end a step, the surest last. What ended one silences those before it.
ROOT = "root"  # the model that began the step is called again, and nothing else ends steps
OPTIMIZER = "optimizer"  # an optimizer has made its step
USER = "user"  # sonde.step()
END = "end"  # the recording is over


class Step:
    """A step that has just ended."""

    __slots__ = ("begin_ns", "end_ns", "kind", "number")

    def __init__(self, number: int, begin_ns: int, end_ns: int, kind: str) -> None:
        self.number, self.begin_ns, self.end_ns, self.kind = number, begin_ns, end_ns, kind


class Steps:
    """Counts the steps of this process; each listener is called in the thread that ends one, right
    after its end, and must be quick and raise nothing: wrap it in `host.guard`."""

    def __init__(self) -> None:
        self.number = 0  # of the step that is under way
        self.begin_ns = 0  # 0: before the first end of one
        self.last = ""  # what ended the last one
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, listener: Listener) -> None:
        """Have `listener(step)` called at the end of every step."""
        self._listeners = (*self._listeners, listener)

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    def end(self, kind: str) -> None:
        """The step that was under way is over, and the next one begins."""
        now_ns = _core.clock_ns()
        ended = Step(self.number, self.begin_ns, now_ns, kind)
        self.number += 1
        self.begin_ns, self.last = now_ns, kind
        for listener in self._listeners:
            listener(ended)


steps = Steps()
