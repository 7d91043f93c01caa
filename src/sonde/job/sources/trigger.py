"""Stacks of all threads when something happens, as named by trigger.on."""

from __future__ import annotations

from sonde.job.source_context import SourceContext

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.job.triggers import Triggers


class Source:
    """Does nothing until there are conditions; then watches for them."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._wanted: tuple[object, ...] = ("", None)
        self._triggers: Triggers | None = None

    def start(self) -> None:
        self._apply_setting()
        self._context.detail = self._describe()

    def stop(self) -> None:
        self._end()

    def configure(self) -> None:
        """Watch for what trigger.on names now."""
        if self._apply_setting():
            self._context.report(self._describe())

    def _apply_setting(self) -> bool:
        """Apply the settings; return whether they have changed."""
        values = self._context.session.values
        wanted = (values["trigger.on"], values["trigger.most"] if values["trigger.on"] else None)
        if wanted == self._wanted:
            return False
        self._wanted = wanted
        self._end()
        if wanted[0]:
            from sonde.job.triggers import Triggers  # most programs never need it

            self._triggers = Triggers(self._context)
            self._triggers.start()
        return True

    def _end(self) -> None:
        triggers, self._triggers = self._triggers, None
        if triggers is not None:
            triggers.stop()

    def _describe(self) -> str | None:
        if self._triggers is None:
            return "nothing is waited for; set trigger.on"
        if not self._context.session.values["source.stack"]:
            return "nothing is seen while source.stack is off"
        return None
