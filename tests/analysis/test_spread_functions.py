"""Functions whose time is spread over their lines."""

from __future__ import annotations

from sonde.analysis.code_tree import read_tree
from sonde.analysis.hot_places import HotPlace, list_places
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import find_window
from sonde.analysis.work_kinds import find_instead
from support.handmade_stacks import FakeRecording

MAIN = ("main", "/job/app.py", 5, 1)
ROLL = ("roll", "/opt/py/lib/python3.12/site-packages/numpy/_core/numeric.py", 1200, 1190)


def find(recording: FakeRecording) -> list[HotPlace]:
    profile = Profile(recording, Selection(find_window(recording, None, None)))
    return list_places(read_tree(profile))


def see(lines: dict[int, int], call: str | None = None) -> FakeRecording:
    recording = FakeRecording().see([MAIN], 10, wall=300)
    for line, wall in lines.items():
        stack = [MAIN, ("match", "/job/app.py", 12, 10), ("overlap", "/job/app.py", line, 20)]
        recording.see(stack, 100 + line, wall=wall, call=call)
    return recording


def test_a_function_of_which_no_line_stands_out_is_told_as_a_whole() -> None:
    found = find(see({line: 20 for line in range(21, 31)}))
    assert [(one.func, one.line, round(one.share_pct)) for one in found] == [
        ("main", 5, 60), ("overlap", 21, 40)
    ]  # fmt: skip
    spread = found[1]
    assert (spread.state, spread.caller) == ("working", "match (app.py:12) < main (app.py:5)")
    assert spread.facts == "spread over 10 lines: plain Python 100 %"
    assert "lru_cache" in spread.instead


def test_single_elements_say_what_people_do() -> None:
    found = find(see({line: 20 for line in range(21, 31)}, call="torch._C.TensorBase.item"))
    assert found[1].facts == "spread over 10 lines: torch._C.TensorBase.item 100 %"
    assert "whole tensor" in found[1].instead


def test_a_line_that_takes_much_is_told_itself() -> None:
    found = find(see({21: 100, 22: 50, 23: 50}))
    assert [(one.func, one.line) for one in found] == [
        ("main", 5), ("overlap", 21), ("overlap", 22), ("overlap", 23)
    ]  # fmt: skip


def test_what_a_line_of_array_calls_does_itself_are_operators() -> None:
    step = ("step", "/job/heat.py", 9, 8)
    recording = FakeRecording().see([MAIN, step, ROLL], 40, wall=50).see([MAIN, step], 41, wall=40)
    roll, own = find(recording)
    assert (roll.call, own.call) == ("numpy.roll", "operators of arrays")
    assert own.kind == "numeric work" and "out=" in find_instead(own.call, None, is_waiting=False)


def test_what_is_told_of_one_of_its_lines_is_not_told_of_the_function_again() -> None:
    # The line `21` of `overlap` is told itself: `many` asks for most of it, and stands for the rest.
    recording = FakeRecording().see([MAIN], 10, wall=300)
    many, few = ("many", "/job/app.py", 12, 10), ("few", "/job/app.py", 15, 14)
    for line in range(30, 50):
        recording.see([MAIN, ("many", "/job/app.py", line, 10)], 100 + line, wall=10)
    for at, (caller, wall) in enumerate(((many, 70), (few, 30))):
        recording.see([MAIN, caller, ("overlap", "/job/app.py", 21, 20)], 200 + at, wall=wall)
    found = find(recording)
    assert {(one.func, round(one.share_pct)) for one in found} == {
        ("main", 50), ("many", 33), ("overlap", 17)
    }  # fmt: skip
    assert sum(one.share_pct for one in found) <= 100.1
