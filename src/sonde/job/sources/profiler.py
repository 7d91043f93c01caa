"""What other ranks of the job tell this rank's `sonde.profiler`."""

from __future__ import annotations

import os

from sonde.job.source_context import SourceContext

ON = True
NEEDS = ()


class Source:
    """Obeys at a safe point of the main thread; see mxnet/ranks.py."""

    def __init__(self, context: SourceContext) -> None:
        self._folder = context.session.folder
        self._done = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def configure(self) -> None:
        """The control page rang; it may be for us."""
        if os.path.exists(os.path.join(self._folder, "profiler.json")):
            from sonde.job.mxnet import ranks  # a job that has no profiler loads none

            self._done = ranks.obey(self._folder, self._done)
