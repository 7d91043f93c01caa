"""Collectives of torch.distributed, from c10d's own records."""

from __future__ import annotations

import os
import sys

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.seams import check_header, find_library
from sonde.job.torch.steps import steps
from sonde.tables.collective import Collective

ON = True
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Source:
    """Lets the core observe c10d's works and read its flight recorder."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._update_groups = context.guard(self._register_groups)
        self._unobserved: str | None = None  # why works cannot be observed; None if they can
        self._known: set[str] = set()

    def start(self) -> None:
        torch: Any = sys.modules["torch"]
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            raise Unavailable("this torch was built without torch.distributed")
        session = self._context.session
        self._unobserved = check_header(torch)
        cuda = find_library(torch, "libtorch_cuda.so")
        emit, cpu = self._context.writer(Collective), find_library(torch, "libtorch_cpu.so")
        _core.collective_start(
            emit, session.text, session.page, cpu,
            cuda if os.path.exists(cuda) else None, self._update_groups, steps.number,
            self._unobserved is None,
        )  # fmt: skip
        if self._unobserved is None:
            _find_inputs(torch)
        self._context.detail = "waiting for the program to create a process group"
        steps.subscribe(_core.collective_step)

    def stop(self) -> None:
        steps.unsubscribe(_core.collective_step)
        self._update_groups()
        _core.collective_stop()

    # ---- groups --------------------------------------------------------------------------------

    def _register_groups(self) -> None:
        """Pass new groups to the core, which calls this when it meets one it does not know."""
        world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        names: dict[Any, str] = getattr(world, "pg_names", {})
        ranks: dict[Any, dict[int, int]] = getattr(world, "pg_group_ranks", {})
        kinds: dict[Any, tuple[str, object]] = getattr(world, "pg_map", {})
        fresh = [(group, name) for group, name in names.items() if name not in self._known]
        for group, name in fresh:
            members = sorted(ranks.get(group, {}))
            _core.collective_group(name, len(members) or group.size(), ",".join(map(str, members)))
            self._known.add(name)
            if kinds.get(group, ("",))[0] == "nccl" and self._is_timed():
                _time_device(group)
        if fresh:
            self._learn_rank(getattr(world, "default_pg", None))
            self._context.report(self._describe())

    def _learn_rank(self, everybody: Any) -> None:
        """Note the rank of a process that got it as an argument: torch.multiprocessing.spawn, and
        programs that start their ranks themselves, set no variables."""
        if everybody is not None and everybody.size() > 1:
            self._context.session.learn_rank(everybody.rank(), everybody.size())

    def _is_timed(self) -> bool:
        return bool(self._context.session.values["collective.device"])

    def _describe(self) -> str:
        state = _core.collective_state()
        why = self._unobserved
        seen = "c10d's works" if why is None else f"no durations ({why})"
        recorded = "its flight recorder" if state["recorded"] else "no groups (no flight recorder)"
        return f"{seen}, {recorded}"


def _find_inputs(torch: Any) -> None:
    """Have the core find where torch's ranges keep their input tensors."""
    tensor = torch.empty(0)
    _core.collective_find_inputs(tensor._cdata, tensor.neg)


def _time_device(group: Any) -> None:
    """Have NCCL record when its kernels begin and end."""
    enable = getattr(group, "_enable_collectives_timing", None)
    if enable is not None:
        try:
            enable()
        except RuntimeError:
            pass  # this backend has no clock of its own
