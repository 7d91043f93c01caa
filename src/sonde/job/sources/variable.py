"""Variables of the training loop at the end of each step, as named by torch.watch."""

from __future__ import annotations

from sonde.job.source_context import SourceContext
from sonde.job.sources._python_objects import show

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.job.torch.steps import Step
    from sonde.job.variables.rows import Variables


class Source:
    """Does nothing until something is watched; then records it whenever a step ends."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._ended = context.guard(self._end_step)
        self._watched = ""
        self._variables: Variables | None = None

    def start(self) -> None:
        self._apply_setting()
        self._context.detail = self._describe()

    def stop(self) -> None:
        self._stop_watching()

    def configure(self) -> None:
        """Watch what torch.watch names now."""
        if self._apply_setting():
            self._context.report(self._describe())

    def _apply_setting(self) -> bool:
        """Apply the setting; return whether it has changed."""
        wanted = str(self._context.session.values["torch.watch"])
        if wanted == self._watched:
            return False
        self._watched = wanted
        self._stop_watching()
        if wanted:
            # Most programs never need these.
            from sonde.job.torch.steps import steps
            from sonde.job.variables.rows import Variables
            from sonde.tables.variable import Variable

            self._variables = Variables(wanted, self._context.writer(Variable), show)
            steps.subscribe(self._ended)
        return True

    def _describe(self) -> str | None:
        return None if self._watched else "nothing is watched; set torch.watch"

    def _stop_watching(self) -> None:
        variables, self._variables = self._variables, None
        if variables is not None:
            from sonde.job.torch.steps import steps

            steps.unsubscribe(self._ended)
            variables.finish()

    def _end_step(self, step: Step) -> None:
        # A local copy, because another thread may be applying settings.
        variables = self._variables
        if variables is not None:
            variables.record(step)
