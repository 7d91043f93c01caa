"""The result of a profile run, as people read it."""

from __future__ import annotations

from sonde.job import profile
from sonde.session.records import RunResult
from sonde.session.run_result import Result


def make_result(frames, nodes) -> Result:
    found = RunResult(
        id="r1", session=None, name=None, tags=[], skipped=0, host=None, pid=None, rank=None,
        begin_ns=0, end_ns=10**9, wall_offset_ns=0, reason=None, frames=frames,
        nodes=nodes, ours=(0, 0, 0, 0),
    )  # fmt: skip
    return Result(found)


def test_a_function_is_one_line_whatever_its_name_is() -> None:
    frames = [("a\x1b]0;owned\x07\rb", "/tmp/c\x9bd.py", 1, 2)]
    lines = make_result(frames, [(-1, 0, 1, 10**9, 10**9, 0)]).show().split("\n")
    assert len(lines) == 3
    assert lines[2].endswith("a\\x1b]0;owned\\x07\\rb (/tmp/c\\x9bd.py:1)")


def test_frames_of_ours_between_those_of_the_program_are_not_shown() -> None:
    frames = [("main", "/job/a.py", 1, 2), ("wrap.<locals>.wrapper", profile.__file__, 1, 2),
              ("load", "/job/a.py", 9, 9)]  # fmt: skip
    nodes = [(-1, 0, 0, 0, 0, 0), (0, 1, 1, 10, 10, 0), (1, 2, 9, 90, 90, 0)]
    result = make_result(frames, nodes)
    assert [row["func"] for row in result.table()] == ["load", "main"]
    assert [[frame[0] for frame in path] for path, _ in result.iter_stacks()] == [
        ["main"], ["main", "load"]]  # fmt: skip
