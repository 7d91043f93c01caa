"""The line that says how far something has come."""

from __future__ import annotations

import pytest

from sonde.cli._progress import draw_bar

LONG = "measuring  59m53s left  cpu 189 %  memory 4.458 GiB of 23.59 GiB"


@pytest.mark.parametrize("columns", [20, 79, 90, 159])
def test_the_numbers_are_never_cut_for_the_bar(columns: int) -> None:
    line = draw_bar(LONG, 7, 3600, columns)
    assert line.endswith("  7/3600 s")
    assert len(line) <= max(columns, len(f"{LONG}  7/3600 s"))
    assert ("░" in line) == (columns >= 90)


def test_without_an_end_there_is_no_bar() -> None:
    assert draw_bar("waiting", 7.4, None, 80) == "waiting  7 s"
    assert draw_bar("waiting", 5, 10, 80) == f"waiting  {'█' * 15}{'░' * 15}  5/10 s"
