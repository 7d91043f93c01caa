"""PyTorch's modules, steps and memory."""

from __future__ import annotations

from sonde.job.source_context import SourceContext
from sonde.job.torch.recording import TorchRecording
from sonde.tables.overhead import Overhead
from sonde.tables.torch import (
    TorchDebug,
    TorchLoader,
    TorchMemory,
    TorchModule,
    TorchOptimizer,
    TorchPrecision,
    TorchStep,
    TorchThreads,
    TorchTrace,
    TorchWorker,
)

ON = True
NEEDS = ("torch",)

_ROWS = (
    TorchTrace, TorchStep, TorchModule, TorchMemory, Overhead, TorchLoader, TorchWorker,
    TorchThreads, TorchOptimizer, TorchPrecision, TorchDebug,
)  # fmt: skip


class Source:
    """Records torch; see job/torch/recording.py."""

    def __init__(self, context: SourceContext) -> None:
        self._recording = TorchRecording(context, *(context.writer(row) for row in _ROWS))

    def start(self) -> None:
        self._recording.start()

    def stop(self) -> None:
        self._recording.stop()

    def configure(self) -> None:
        """Apply the settings."""
        self._recording.configure()
