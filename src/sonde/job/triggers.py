"""Watch for the conditions of trigger.on; the native thread then takes stacks and writes rows."""

from __future__ import annotations

from _thread import get_native_id
from collections import deque

from sonde import _core, settings
from sonde.job.event_mirrors import Mirrors
from sonde.job.source_context import SourceContext
from sonde.job.torch.steps import steps
from sonde.job.uncaught import uncaught
from sonde.tables.trigger import Trigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.job.torch.steps import Step
    from sonde.settings import TriggerCondition

    Numbered = tuple[int, TriggerCondition]

_SLOTS = 256  # as in trigger.c
_RECENT, _LEAST = 32, 8  # steps from which it is learnt how long one usually takes


class Triggers:
    """The conditions of one value of `trigger.on`.

    Conditions 0 to n have the slots 0 to n; the other slots are for spans that are open."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        session = context.session
        found = settings.list_conditions(str(session.values["trigger.on"]))
        self._by_kind: dict[str, list[Numbered]] = {}
        for number, one in enumerate(found):
            self._by_kind.setdefault(one.kind, []).append((number, one))
        most = int(session.values["trigger.most"])
        texts = [one.text for one in found]
        self._spans = _by_name(self._by_kind.get("span", []))
        other = context.guard(self._see_event) if self._spans else None
        self._core = _core.Trigger(context.writer(Trigger), session.text, texts, most, other)
        self._open: dict[int, list[int]] = {}  # spans that have slots, by their numbers
        self._free = list(range(len(found), _SLOTS))
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._step = context.guard(self._end_step)
        self._exception = context.guard(self._see_exception)

    def start(self) -> None:
        for number, one in self._by_kind.get("memory", ()):
            self._core.watch_memory(number, one.limit)
        for number, one in self._by_kind.get("hang", ()):
            # Until the first step: then steps say whether the program makes progress.
            self._core.watch_still(number, round(one.limit * 1e9))
        for number, one in self._by_kind.get("counter", ()):
            self._core.watch_counter(number, one.name, one.limit, one.is_below)
        if "step" in self._by_kind or "hang" in self._by_kind:
            steps.subscribe(self._step)
        if self._spans or "counter" in self._by_kind:
            Mirrors.listen(self._core)
        if "exception" in self._by_kind:
            uncaught.subscribe(self._exception)
        self._core.start()

    def stop(self) -> None:
        self._core.stop()
        steps.unsubscribe(self._step)
        uncaught.unsubscribe(self._exception)
        if Mirrors.listener is self._core:
            Mirrors.listen(None)

    # ---- steps -----------------------------------------------------------------------------------

    def _end_step(self, step: Step) -> None:
        """Have each condition met when the step that begins now takes too long."""
        if step.begin_ns:
            self._recent.append(step.end_ns - step.begin_ns)
        for number, one in self._by_kind.get("step", ()):
            limit_ns = self._find_limit(one)
            if limit_ns:
                self._arm(number, number, step.end_ns, limit_ns)
        for number, one in self._by_kind.get("hang", ()):
            self._core.watch_still(number, 0)
            self._arm(number, number, step.end_ns, round(one.limit * 1e9))

    def _find_limit(self, one: TriggerCondition) -> int:
        """Return how long a step may take in nanoseconds; 0: that is not known yet."""
        if one.times is None:
            return round(one.limit * 1e9)
        if len(self._recent) < _LEAST:
            return 0
        return round(one.times * sorted(self._recent)[len(self._recent) // 2])

    def _arm(self, slot: int, number: int, since_ns: int, limit_ns: int) -> None:
        self._core.arm(slot, number, since_ns, since_ns + limit_ns, get_native_id())

    # ---- spans and exceptions --------------------------------------------------------------------

    def _see_event(
        self, what: str, _domain: object, name: str, _kind: str, number: int, _value: object
    ) -> None:
        if what == "begin" and name in self._spans:
            self._begin_span(number, name)
        elif what == "end" and number in self._open:
            for slot in self._open.pop(number):
                self._core.disarm(slot)
                self._free.append(slot)

    def _begin_span(self, number: int, name: str) -> None:
        now_ns = _core.clock_ns()
        for condition, one in self._spans[name]:
            if self._free:  # else very many are open
                slot = self._free.pop()
                self._open.setdefault(number, []).append(slot)
                self._arm(slot, condition, now_ns, round(one.limit * 1e9))

    def _see_exception(self, _error: BaseException, _trace: object) -> None:
        for number, _one in self._by_kind["exception"]:
            self._core.fire(number)


def _by_name(conditions: list[Numbered]) -> dict[str, list[Numbered]]:
    found: dict[str, list[Numbered]] = {}
    for number, one in conditions:
        found.setdefault(one.name, []).append((number, one))
    return found
