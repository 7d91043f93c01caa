"""What PyTorch waits for, copies and allocates on a GPU: its calls of CUDA's runtime."""

from __future__ import annotations

import os
import sys

from sonde import _core
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext
from sonde.job.torch.seams import find_library
from sonde.tables.cuda import CudaCall

ON = True
NEEDS = ("torch",)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch_cuda_linalg.so")


_CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def _read_clocksource() -> str:
    """Return what the kernel's clock counts by; empty if that is not said here."""
    try:
        with open(_CLOCKSOURCE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


class Source:
    """Has the core stand in the slots through which torch calls CUDA: _core/torch/cuda_calls.c."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context

    def start(self) -> None:
        torch: Any = sys.modules["torch"]
        if getattr(getattr(torch, "version", None), "cuda", None) is None:
            raise Unavailable("this PyTorch was built without CUDA")
        session = self._context.session
        libraries = tuple(find_library(torch, name) for name in _LIBRARIES)
        folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
        try:
            taken = _core.cuda_calls_start(
                self._context.writer(CudaCall), session.text, session.page, libraries, folder,
                _read_clocksource(),
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(str(error)) from None
        if taken == 0:
            _core.cuda_calls_stop()
            raise Unavailable("PyTorch's libraries do not call CUDA in a way that can be seen")

    def publish(self) -> None:
        """Write the sums of short calls."""
        _core.cuda_calls_flush()

    def stop(self) -> None:
        _core.cuda_calls_stop()
