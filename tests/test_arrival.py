"""Waiting for an import."""

from __future__ import annotations

import importlib.util
import sys

from sonde.training.arrival import Arrival


def test_one_who_waits_is_told_once_though_another_imports_meanwhile() -> None:
    told: list[str] = []

    def first() -> None:
        told.append("first")
        importlib.import_module("colorsys")

    sys.modules.pop("colorsys", None)
    second = Arrival(lambda: True, lambda: told.append("second"))
    leader = Arrival(lambda: True, first)
    second.start()
    leader.start()  # in front of the other
    try:
        importlib.util.find_spec("nothing_of_this_name")
    finally:
        second.stop()
        leader.stop()
    assert told == ["first", "second"]
