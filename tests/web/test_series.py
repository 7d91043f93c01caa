"""Numbers over time: what is left out of a long list, and what is not."""

from __future__ import annotations

import gc

import sonde
from sonde.session import Session
from sonde.web.opened import Opened
from sonde.web.questions import QUESTIONS
from sonde.web.series import MARKS_OF_KIND, MOST_MARKS


def test_marks_of_each_kind_are_there_however_many_another_kind_has(root) -> None:
    folder = sonde.start()
    assert folder is not None
    for number in range(MOST_MARKS + 1):
        sonde.mark(f"step {number}")
    kept = [[] for _ in range(500_000)]
    gc.collect()  # far more than 5 ms
    del kept
    sonde.stop()
    opened = Opened("it", [Session(folder)])
    found = QUESTIONS["marks"](opened, {}).data
    opened.close()
    assert found["counts"]["marker"] == MOST_MARKS + 1
    assert found["counts"]["gc"] >= 1
    kinds = [one["kind"] for one in found["marks"]]
    assert kinds.count("marker") == MOST_MARKS
    assert kinds.count("gc") == min(MARKS_OF_KIND, found["counts"]["gc"])
