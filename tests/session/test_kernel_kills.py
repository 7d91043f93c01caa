"""Which processes the kernel has killed for memory, as its log says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.session import kernel_kills

DAY_NS = 86_400 * 10**9


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kmsg"
    monkeypatch.setattr(kernel_kills, "_LOG", str(path))
    monkeypatch.setattr(kernel_kills, "_read", None)
    return path


def write_kill(log: Path, t_ns: int, pid: int = 42) -> None:
    log.write_text(
        f"6,1,1000,-;Booting\n3,2,{t_ns // 1000},-;Memory cgroup out of memory: Killed process {pid} (x)\n"
    )


@pytest.mark.parametrize(("away_s", "found"), [(0, "cgroup"), (200, "cgroup"), (400, "")])
def test_after_a_month_the_logs_clock_may_be_minutes_off(
    log: Path, away_s: int, found: str
) -> None:
    write_kill(log, 30 * DAY_NS + away_s * 10**9)
    assert kernel_kills.find_kill(42, 30 * DAY_NS) == found


def test_soon_after_a_start_it_is_not(log: Path) -> None:
    write_kill(log, 3600 * 10**9)
    assert kernel_kills.find_kill(42, 3600 * 10**9 + 5 * 10**9) == "cgroup"
    assert kernel_kills.find_kill(42, 3600 * 10**9 + 60 * 10**9) == ""
    assert kernel_kills.find_kill(43, 3600 * 10**9) == ""


def test_without_a_log_nothing_is_known(log: Path) -> None:
    assert kernel_kills.find_kill(42, DAY_NS) is None
