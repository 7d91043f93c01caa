"""Every call of PyTorch's operators, about a microsecond each; on while `sonde.profiler` runs."""

from __future__ import annotations

import sys

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.seams import check_header, find_library
from sonde.tables.operator import Operator

ON = False
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Source:
    """Lets the core observe operators; see _core/torch/operators.c."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context

    def start(self) -> None:
        torch: Any = sys.modules["torch"]
        reason = check_header(torch)
        if reason:
            raise Unavailable(reason)
        session, library = self._context.session, find_library(torch, "libtorch_cpu.so")
        try:
            _core.operators_start(
                self._context.writer(Operator), session.text, session.page, library
            )
        except OSError as error:
            raise Unavailable(str(error)) from None

    def stop(self) -> None:
        _core.operators_stop()
