"""Where regions go: on their thread where they layout, else on tracks beside it."""

from __future__ import annotations

import random

import pytest

from sonde.analysis.region_layout import FOREVER_NS, NONE, RegionLayout


def place(*regions: tuple[int, int, int, int, int, int]) -> RegionLayout:
    """Regions as (id, parent, thread, end_thread, start, end), placed with the whole truth known."""
    ordered = sorted(regions, key=lambda region: (region[4], region[4] - region[5], region[0]))
    columns = list(zip(*ordered, strict=True))
    first = RegionLayout()
    first.feed(*columns)
    second = RegionLayout(set(first.apart))
    second.feed(*columns)
    return second


def find_tracks(layout: RegionLayout) -> dict[int, tuple[int, int]]:
    return {misfit.id: (misfit.family, misfit.track) for misfit in layout.misfits}


def test_regions_in_their_parent_stay_on_their_thread() -> None:
    layout = place((1, NONE, 7, 7, 0, 100), (2, 1, 7, 7, 10, 50), (3, 2, 7, 7, 20, 50),
                 (4, 1, 7, 7, 50, 100), (5, NONE, 7, 7, 100, 101))  # fmt: skip
    assert not layout.misfits and not layout.strays


def test_tasks_that_take_turns_are_set_apart_each_with_its_children() -> None:
    layout = place((1, NONE, 7, 7, 0, 50), (2, NONE, 7, 7, 10, 60), (3, 1, 7, 7, 20, 30),
                 (4, 2, 7, 7, 25, 40), (9, NONE, 7, 7, 70, 80))  # fmt: skip
    assert find_tracks(layout) == {1: (1, 0), 3: (1, 0), 2: (2, 0), 4: (2, 0)}


def test_a_task_that_lies_inside_another_is_not_its_child() -> None:
    layout = place((1, NONE, 7, 7, 0, 50), (2, NONE, 7, 7, 10, 20))
    assert set(find_tracks(layout)) == {1, 2}


def test_children_of_one_parent_that_overlap_get_tracks_of_their_own() -> None:
    layout = place((1, NONE, 7, 7, 0, 90), (2, 1, 7, 7, 10, 50), (3, 1, 7, 7, 20, 60),
                 (4, 3, 7, 7, 30, 40), (5, 1, 7, 7, 70, 80))  # fmt: skip
    tracks = find_tracks(layout)
    assert tracks[1] == tracks[2] == tracks[5] == (1, 0)
    assert tracks[3] == tracks[4] == (1, 1)


def test_a_region_that_ends_in_another_thread_is_set_apart() -> None:
    layout = place((1, NONE, 7, 8, 0, 50), (2, NONE, 7, 7, 60, 70))
    assert set(find_tracks(layout)) == {1}


def test_work_for_a_parent_elsewhere_stays_on_its_thread_and_is_a_stray() -> None:
    layout = place((1, NONE, 7, 7, 0, 10), (2, NONE, 8, 8, 5, 90), (3, 1, 8, 8, 20, 40))
    assert not layout.misfits
    assert [(stray.id, stray.parent) for stray in layout.strays] == [(3, 1)]


def test_what_was_unfinished_keeps_its_place_when_it_ends() -> None:
    layout = RegionLayout()
    layout.feed([1, 2], [NONE, NONE], [7, 7], [7, 7], [0, 5], [FOREVER_NS, FOREVER_NS])
    before = dict(find_tracks(layout))
    layout.take()
    layout.settle()
    layout.feed([1, 2], [NONE, NONE], [7, 7], [7, 7], [0, 5], [50, 60])
    assert before.items() <= find_tracks(layout).items()


@pytest.mark.parametrize("seed", range(100))
def test_what_shares_a_lane_or_a_track_always_nests(seed: int) -> None:
    chance = random.Random(seed)
    regions = []
    for number in range(1, 40):
        start = chance.randrange(100)
        parent = chance.choice([NONE, *(r[0] for r in regions[-5:])])
        thread = chance.choice([7, 8])
        end_thread = thread if chance.random() < 0.9 else 9
        regions.append((number, parent, thread, end_thread, start, start + chance.randrange(50)))
    layout = place(*regions)
    tracks, where = find_tracks(layout), {}
    for number, _, thread, _, start, end in regions:
        where.setdefault(tracks.get(number, thread), []).append((start, end))
    for pieces in where.values():
        stack = []
        for start, end in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)
