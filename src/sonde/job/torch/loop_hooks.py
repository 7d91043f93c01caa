"""Hooks on the training loop: its optimizers and its data loaders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from weakref import ref

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.job.torch.old_compiler import wrap_hook
from sonde.job.torch.steps import OPTIMIZER, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Optimizers:
    """Finds the end of a step with torch's global optimizer hooks, and times optimizers.

    If several optimizers alternate, as with two models that compete, the first one leads: a step is
    one round of all. If the leader is no longer used, the next one that is seen twice leads. `meet`
    is called with each new leader. What happens at every step is in _core/torch/."""

    def __init__(
        self, context: SourceContext, steps: Steps, meet: Callable[[object], object]
    ) -> None:
        self._steps, self._meet = steps, meet
        self._handles: list[Any] = []
        self.core = _core.TorchOptimizers(
            context, context.session.text, steps, OPTIMIZER, context.guard(self._meet_other)
        )

    def start(self) -> None:
        torch, optimizer = sys.modules["torch"], sys.modules["torch.optim.optimizer"]
        before, after = (wrap_hook(torch, hook) for hook in (self.core.before, self.core.after))
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(before),
            optimizer.register_optimizer_step_post_hook(after),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _meet_other(self, optimizer: object) -> None:
        """Handle a step of an optimizer that does not lead, at least not yet."""
        lead, since = self.core.lead, self.core.since
        if lead is not None and lead() is not None and id(optimizer) not in since:
            since.add(id(optimizer))
            return
        self.core.lead = ref(optimizer)
        self._meet(optimizer)
        since.clear()
        self._steps.end(OPTIMIZER)


class Loaders:
    """Measures how long the loop waits for torch's DataLoader; `meet` is called with an iterator
    whenever it is not the one used last."""

    def __init__(self, meet: Callable[[object], object]) -> None:
        self._meet = meet
        self._class: Any = None
        self.core: _core.TorchNext | None = None

    def start(self) -> None:
        """Wrap `next()` of every iterator over a DataLoader."""
        module = sys.modules.get("torch.utils.data.dataloader")
        kind = getattr(module, "_BaseDataLoaderIter", None)
        if kind is None:
            return
        self._class, self._original = kind, vars(kind)["__next__"]
        kind.__next__ = self.core = _core.TorchNext(self._original, self._meet)

    def stop(self) -> None:
        if self._class is not None and vars(self._class).get("__next__") is self.core:
            self._class.__next__ = self._original
        self._class = None
