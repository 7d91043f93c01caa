"""The result of a profile run, as people read it."""

from __future__ import annotations

from sonde.session.records import RunResult
from sonde.session.run_result import Result


def test_a_function_is_one_line_whatever_its_name_is() -> None:
    found = RunResult(
        id="r1", session=None, name=None, tags=[], skipped=0, host=None, pid=None, rank=None,
        begin_ns=0, end_ns=10**9, wall_offset_ns=0, reason=None,
        frames=[("a\x1b]0;owned\x07\rb", "/tmp/c\x9bd.py", 1, 2)],
        nodes=[(-1, 0, 1, 10**9, 10**9, 0)], ours=(0, 0, 0, 0),
    )  # fmt: skip
    lines = Result(found).show().split("\n")
    assert len(lines) == 3
    assert lines[2].endswith("a\\x1b]0;owned\\x07\\rb (/tmp/c\\x9bd.py:1)")
