"""What a test file needs to be installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need(*modules: str) -> None:
    """Leave the file out unless all of these are installed; imports none of them, as torch takes
    seconds and the tests start programs that use it."""
    for name in modules:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
