"""Stacks of many ranks: one tree, outliers first, and who is behind."""

from __future__ import annotations

from sonde.analysis.live_processes import list_missing
from sonde.analysis.rank_tree import (
    find_lags,
    group_places,
    merge_stacks,
    name_place,
    split_threads,
)
from sonde.cli._rank_text import RankText
from sonde.cli._stack_text import Painter
from support.handmade_ranks import (
    QUEUE,
    SECOND,
    STUCK,
    WAITING,
    make_collective,
    make_ranks,
    make_row,
    make_thread,
)


def draw(rows) -> list[str]:
    return list(RankText(Painter(coloured=False), rows).draw())


def test_a_frame_of_ours_between_those_of_the_program_is_not_shown() -> None:
    ours = ["call", "/v/lib/python3.12/site-packages/sonde/job/sources/_web_servers.py", 56]
    bare = draw([make_row(rank, 2, STUCK) for rank in range(2)])
    assert draw([make_row(rank, 2, [STUCK[0], ours, *STUCK[1:]]) for rank in range(2)]) == bare


def test_processes_of_two_jobs_are_not_said_to_be_of_one() -> None:
    rows = [make_row(rank, 2, STUCK, job=f"train-{rank}") for rank in range(2)]
    assert draw(rows)[0] == "2 ranks"


def test_a_thousand_ranks_are_one_picture_with_the_outlier_first() -> None:
    assert draw(make_ranks(1024)) == [
        "Job train-7: 1,024 ranks on 128 hosts",
        "",
        "Collectives",
        "  group 0 (default_pg): 1,023 ranks (0-16, 18-1023) wait in all_reduce, no. 212, for 45.0 s",
        "    rank 17 (node002, pid 1017) is behind: it has finished 211",
        "",
        "Where they are",
        "  rank 17 (node002, pid 1017): load (data.py:88) in torch.DataLoader.__next__, idle for 45.0 s: "
        "waits for a lock",
        "  1,023 ranks (0-16, 18-1023): step (trainer.py:212) in torch.all_reduce, idle for 45.0 s: "
        "waits for a lock",
        "",
        "<module> (train.py:40)",
        "main (train.py:33)",
        "├─ rank 17 (node002, pid 1017)",
        "│  load (data.py:88)",
        "│  DataLoader.__next__ (torch/utils/data/dataloader.py:630)",
        "└─ 1,023 ranks (0-16, 18-1023)",
        "   step (trainer.py:212)",
        "   all_reduce (torch/distributed/distributed_c10d.py:2810)",
        "",
        "Other threads",
        '  1,024 threads of 1,024 ranks (0-1023) "loader": run (data.py:9) in queue.Queue.get, idle for 45.0 s: '
        "waits for an item from a queue",
    ]


def test_a_rank_that_sleeps_again_and_again_is_at_one_line_not_idle_all_that_time() -> None:
    napping = {**make_thread(1000, WAITING), "has_run": True}  # its main thread
    lines = draw([make_row(0, 2, WAITING, threads=[napping]), make_row(1, 2, STUCK)])
    assert "idle, at this line for 45.0 s" in lines[3] and "idle for 45.0 s" in lines[4], lines


def test_the_workers_of_a_server_are_processes_like_the_one_that_started_them() -> None:
    rows = [
        make_row(None, 0, stack, pid=pid, is_child=pid > 4242, threads=[make_thread(pid, stack)])
        for pid, stack in ((4242, WAITING[1:]), (4243, STUCK), (4244, WAITING), (4245, WAITING))
    ]
    lines = draw(rows)
    assert lines[0] == "Job train-7: 4 processes" and "Other threads" not in lines
    named = [line.partition(":")[0] for line in lines[3:6]]
    assert named == ["  process 4242", "  process 4243", "  2 processes (4244, 4245)"]
    ranks = [make_row(0, 2, WAITING), make_row(1, 2, WAITING), make_row(1, 2, STUCK, is_child=True)]
    assert draw(ranks)[0] == "Job train-7: 2 ranks and 1 process that they started"


def test_what_has_started_the_ranks_is_no_rank() -> None:
    rows = [make_row(rank, 2, STUCK) for rank in (0, 1, None)]
    assert draw(rows)[0] == "Job train-7: 2 ranks, beside 1 other process"


def test_many_frames_of_libraries_are_one_line_unless_they_are_asked_for() -> None:
    site = "/v/lib/python3.12/site-packages"
    server = [[f"step_{n}", f"{site}/gunicorn/app.py", n] for n in range(1, 8)]
    rows = [make_row(rank, 2, [*server, *STUCK, *server]) for rank in range(2)]
    text = RankText(Painter(coloured=False), rows, all_frames=False)
    folded = list(text.draw())
    assert "… 7 frames of gunicorn (--all-frames)" in folded and len(draw(rows)) == len(folded) + 11
    inside = folded.index("… 6 frames of torch, gunicorn (--all-frames)")
    assert folded[inside - 1] == "load (data.py:88)"
    assert folded[inside + 1 : inside + 3] == [
        "step_2 (gunicorn/app.py:2)",
        "step_1 (gunicorn/app.py:1)",
    ]


def test_the_tree_branches_where_stacks_differ_and_says_who_is_inside() -> None:
    deeper = [["recv", "/job/trainer.py", 3], *WAITING[1:]]
    rows = [make_row(0, 3, WAITING), make_row(1, 3, deeper), make_row(2, 3, WAITING[1:])]
    tree = merge_stacks(group_places(split_threads(rows)[0]))
    assert [frame[0] for frame in tree.frames] == ["<module>", "main", "step"]
    assert tree.is_end
    assert [[one.process["rank"] for one in child.members] for child in tree.children] == [[0], [1]]
    assert len(list(tree.walk())) == 3


def test_a_rank_that_has_no_collective_yet_or_no_row_at_all_is_named() -> None:
    rows = [row for row in make_ranks(8, slow=3) if row["rank"] != 5]
    rows[3]["collectives"] = []
    (lag,) = find_lags(rows)
    assert [(row["rank"], finished) for row, finished in lag.behind] == [(3, 0)]
    assert (lag.absent, lag.pending, lag.lasted_ns) == ([5], 212, 45 * SECOND)
    assert list_missing(rows) == [5]
    text = "\n".join(draw(rows))
    assert "There is no recording of rank 5 here." in text
    assert "rank 3 (pid 1003) is behind: it has finished 0" in text
    assert "of rank 5 nothing is known here" in text


def test_a_rank_whose_device_hangs_in_an_earlier_collective_is_behind() -> None:
    rows = make_ranks(4, slow=9)
    rows[2]["collectives"] = [make_collective(4, 210, waits=True)]
    (lag,) = find_lags(rows)
    assert [(row["rank"], finished) for row, finished in lag.behind] == [(2, 209)]
    assert len(lag.waiting) == 3


def test_a_rank_that_cannot_tell_yet_who_is_in_its_group_is_in_the_others_group() -> None:
    rows = make_ranks(4, slow=3)
    rows[0]["collectives"][0]["group_ranks"] = None
    (lag,) = find_lags(rows)
    assert [row["rank"] for row, _finished in lag.behind] == [3] and len(lag.waiting) == 3


def test_nobody_is_behind_if_all_have_begun_it_or_nobody_waits() -> None:
    (lag,) = find_lags(make_ranks(4, slow=9))
    assert not lag.behind and len(lag.waiting) == 4
    assert "nobody is behind" in "\n".join(draw(make_ranks(4, slow=9)))
    busy = make_ranks(2)
    for row, number in zip(busy, (7, 9), strict=True):
        row["collectives"] = [make_collective(2, number, waits=False)]
    assert "each rank has finished 7 to 9" in "\n".join(draw(busy))


def test_processes_without_ranks_are_named_by_their_pids_and_the_dead_by_their_end() -> None:
    rows = [make_row(None, 0, STUCK, pid=pid, threads=[make_thread(pid, STUCK)]) for pid in (7, 8)]
    rows.append(make_row(None, 0, [], pid=9, threads=[], alive=False, note="it was killed"))
    text = draw(rows)
    assert text[:2] == ["Job train-7: 3 processes", "(process 9: it was killed)"]
    assert any(line.startswith("  2 processes (7, 8): ") for line in text)


def test_many_places_are_cut_and_the_rest_is_counted() -> None:
    rows = [
        make_row(n, 50, [["f", f"/job/f{n}.py", 1], ["main", "/job/t.py", 3]]) for n in range(50)
    ]
    text = "\n".join(draw(rows))
    assert "… and 30 more places" in text
    assert "… 30 ranks (20-49), 30 more branches" in text


def test_rows_of_another_machine_may_contain_anything() -> None:
    for stack in ("", "[", "3", '[["f"]]', "[[" * 10**5, "[]"):
        row = make_row(0, 2, QUEUE)
        row["threads"][0]["stack"] = stack
        assert any("?" in line for line in draw([row, make_row(1, 2**60, WAITING)]))
    row["collectives"] = [
        {**make_collective(2, 3, waits=True), "group_ranks": "0,x,-1," + "9" * 30}
    ]
    assert find_lags([row])[0].absent == []


def test_a_place_is_named_by_what_the_program_called() -> None:
    wrapped = [WAITING[0], ["wrap.<locals>.wrapper", C_LOGGER, 83], *WAITING[1:]]
    assert (
        name_place([tuple(frame) for frame in wrapped], "/job")
        == "step (trainer.py:212) in torch.all_reduce"
    )
    assert name_place([("f", "", 0)], None) == "f"


C_LOGGER = "/opt/lib/python3.12/site-packages/torch/distributed/c10d_logger.py"
