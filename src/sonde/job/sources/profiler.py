"""Requests of other ranks of the job to this rank's `sonde.profiler`."""

from __future__ import annotations

import os

from sonde.job.source_context import SourceContext

ON = True
NEEDS = ()


class Source:
    """Obeys requests at a safe point of the main thread; see mxnet/ranks.py."""

    def __init__(self, context: SourceContext) -> None:
        self._folder = context.session.folder
        self._done = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def configure(self) -> None:
        """Obey new requests, if the control page rang because of them."""
        if os.path.exists(os.path.join(self._folder, "profiler.json")):
            from sonde.job.mxnet import ranks  # a job that does not use the profiler never loads it

            self._done = ranks.obey(self._folder, self._done)
