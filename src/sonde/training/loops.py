"""Where the program's loop shows itself: its optimizers, and its loaders of data."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from weakref import ref

from sonde import _core
from sonde.training.steps import OPTIMIZER, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 1000  # steps of optimizers in one step, each with a row


class Optimizers:
    """Tells the end of a step by torch's global optimizer hooks, and how long optimizers take.

    Where several are used in turn (two models that play against each other), the first one leads:
    one step is one round. If it is not used any more, the next one that comes twice leads. `meet`
    is told who leads."""

    def __init__(self, steps: Steps, meet: Callable[[object], object]) -> None:
        self._steps, self._meet = steps, meet
        self._handles: list[Any] = []
        self._lead: Callable[[], object] = lambda: None
        self._since: set[int] = set()  # those that came since the lead
        self._began: dict[int, int] = {}
        self.spent_ns = 0  # in this step; whoever reads it sets it to 0
        self._done: list[tuple[str, int, int]] = []

    def take(self) -> list[tuple[str, int, int]]:
        """What optimizers did since the last time: name, begin and end."""
        done, self._done = self._done, []
        return done

    def start(self, guard: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
        optimizer = sys.modules["torch.optim.optimizer"]
        before, after = guard(self._before), guard(self._after)
        for hook in (before, after):
            # Else whoever compiles a step of an optimizer is warned of us.
            hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(before),
            optimizer.register_optimizer_step_post_hook(after),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        self._began[get_ident()] = _core.clock_ns()

    def _after(self, optimizer: object, _args: object, _kwargs: object) -> None:
        began_ns = self._began.pop(get_ident(), 0)
        if began_ns:
            now_ns = _core.clock_ns()
            self.spent_ns += now_ns - began_ns
            if len(self._done) < _MOST:
                self._done.append((type(optimizer).__name__, began_ns, now_ns))
        lead = self._lead()
        if lead is None or id(optimizer) in self._since:
            self._lead = ref(optimizer)
            lead = optimizer
            self._meet(optimizer)
        if lead is optimizer:
            self._since.clear()
            self._steps.end(OPTIMIZER)
        else:
            self._since.add(id(optimizer))


def _no_iterator() -> object:
    return None


class Loaders:
    """Measures how long the loop waits for data, at torch's DataLoader; `meet` is told of each
    iterator that was not the last one in use."""

    def __init__(self, meet: Callable[[object], object]) -> None:
        self._meet = meet
        self._last: Callable[[], object] = _no_iterator
        self._class: Any = None
        self._original: Any = None
        self.spent_ns = 0  # in this step; whoever reads it sets it to 0
        self.first_ns = 0  # when the first batch was asked for
        self.last_ns = 0  # when the last batch of this step came

    def start(self) -> None:
        """Put ourselves in front of `next()` of every iterator over a DataLoader."""
        module = sys.modules.get("torch.utils.data.dataloader")
        kind = getattr(module, "_BaseDataLoaderIter", None)
        if kind is None:
            return
        original = vars(kind)["__next__"]

        def __next__(self_: object) -> object:  # noqa: N807
            begin_ns = _core.clock_ns()
            try:
                return original(self_)
            finally:
                end_ns = _core.clock_ns()
                self.first_ns = self.first_ns or begin_ns
                self.spent_ns += end_ns - begin_ns
                self.last_ns = end_ns
                # By reference: the workers end when the program lets go of it.
                if self._last() is not self_:
                    self._last = ref(self_)
                    self._meet(self_)

        __next__.__wrapped__ = original  # type: ignore[attr-defined]
        self._class, self._original, self._ours = kind, original, __next__
        kind.__next__ = __next__

    def stop(self) -> None:
        if self._class is not None and vars(self._class).get("__next__") is self._ours:
            self._class.__next__ = self._original
        self._class = None
