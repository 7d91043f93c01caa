"""How the columns of `sonde top` share a terminal."""

from __future__ import annotations

from sonde.tui.grid import share_widths
from sonde.tui.page import PageColumn

STACKS = (PageColumn("stack"), PageColumn("where", cut_left=True))
THREADS = (PageColumn("busy%", 6), PageColumn("thread"), PageColumn("in"), PageColumn("at"))


def test_a_column_gets_what_it_needs_where_the_others_leave_room() -> None:
    assert share_widths(STACKS, (41, 18), 80) == [41, 37]
    assert share_widths(THREADS, (0, 27, 8, 10), 80) == [6, 27, 8, 33]


def test_where_there_is_too_little_room_the_longest_are_cut() -> None:
    assert share_widths(THREADS, (0, 27, 8, 30), 60) == [6, 20, 8, 20]
    assert share_widths(STACKS, (90, 90), 42) == [20, 20]
    assert share_widths(STACKS, (9, 9), 1) == [0, 0]
