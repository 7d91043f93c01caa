"""What a recording has of what rules need."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sonde.advice.judge import load_rules
from sonde.advice.known_rows import KnownRows


@pytest.mark.parametrize(
    ("file", "is_known"),
    [("/usr/lib/python3.11/multiprocessing/pool.py", True), ("/job/multiprocessing.py", False)],
)
def test_whether_stacks_go_through_a_file_is_asked_once(file: str, is_known: bool) -> None:
    asked = []

    def fetch(sql: str) -> tuple[list[str], list[tuple[str]]]:
        asked.append(sql)
        return ["file"], [("/job/train.py",), (file,)]

    period = SimpleNamespace(words={"inside": "TRUE"})
    known = KnownRows(SimpleNamespace(fetch=fetch), (), period)  # type: ignore[arg-type]
    for _ in range(2):
        assert (
            known.has_frames_in(["/concurrent/futures/x.py", "/multiprocessing/pool.py"])
            is is_known
        )
    assert len(asked) == 1


def test_what_must_be_true_of_a_table_is_asked_once_for_all_rules() -> None:
    asked = []

    def fetch(sql: str) -> tuple[list[str], list[tuple[bool, bool]]]:
        asked.append(sql)
        return ["c0", "c1"], [(True, False)]

    period = SimpleNamespace(words={"inside": "TRUE"})
    conditions = [("python.torch_step", "MAX(calls) >= 12"), ("python.torch_step", "FALSE")]
    known = KnownRows(SimpleNamespace(fetch=fetch), (), period, conditions)  # type: ignore[arg-type]
    assert known.holds(*conditions[0]) and not known.holds(*conditions[1])
    assert len(asked) == 1


def test_rules_that_are_not_asked_without_some_files_look_at_these_and_say_why() -> None:
    found = [rule for rule in load_rules() if hasattr(rule.module, "IN_FILES")]
    assert {"narrow_pool", "pool_overhead"} <= {rule.name for rule in found}
    for rule in found:
        assert rule.module.OTHERWISE
        assert all(f"{file}'" in rule.module.SQL for file in rule.module.IN_FILES)
