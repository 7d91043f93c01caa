"""Waiting for an import."""

from __future__ import annotations

import importlib.util
import sys

from sonde.job.import_watch import ImportWatch


def test_each_of_two_that_wait_is_called_once_although_the_first_imports() -> None:
    called: list[str] = []

    def first() -> None:
        called.append("first")
        importlib.import_module("colorsys")

    arrivals = [
        ImportWatch(lambda: True, lambda: called.append("second")),
        ImportWatch(lambda: True, first),
    ]
    sys.modules.pop("colorsys", None)
    for one in arrivals:
        one.start()  # the last one stands in front
    assert importlib.util.find_spec("this_is_no_module") is None
    assert sorted(called) == ["first", "second"]
    assert not [finder for finder in sys.meta_path if isinstance(finder, ImportWatch)]
