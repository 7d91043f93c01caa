"""What a test file needs to be installed."""

from __future__ import annotations

import os
import sysconfig
from importlib.util import find_spec

import pytest


def need(*modules: str) -> None:
    """Leave the file, or the test, out unless all of these are installed; imports none of them, as
    torch takes seconds and the tests start programs that use it."""
    for name in modules:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def need_gil() -> None:
    """Leave the test out on a free-threaded Python, of which locals, tasks and exact calls are not recorded."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has no GIL")


def need_cuda() -> None:
    """Leave the test out unless there is an NVIDIA GPU that torch can use."""
    if find_spec("torch") is None or not os.path.exists("/dev/nvidiactl"):
        pytest.skip("needs CUDA")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
