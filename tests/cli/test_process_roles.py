"""Processes with the same command are told apart."""

from __future__ import annotations

from sonde.cli._process_roles import list_commands
from sonde.words import WORKER

FORKS = """
import os, time
child = os.fork()
time.sleep(1.5)
if child: os.waitpid(child, 0)
"""


def row(pid: int, parent: int | None = None, title: str | None = None) -> dict[str, object]:
    return {"pid": pid, "session": f"s{pid}", "parent": parent and f"s{parent}", "title": title,
            "host": "here", "job": None, "ppid": 1}  # fmt: skip


def test_who_forked_a_process_is_told_instead_of_the_same_command_again() -> None:
    rows = [row(1), row(2, parent=1), row(3, parent=2), row(4, parent=1), row(5, parent=9)]
    commands = ["serve.py", "serve.py", "serve.py", "other.py", "serve.py"]
    assert list_commands(rows, commands) == [
        "serve.py", "└ forked by 1", "└ forked by 2", "other.py", "serve.py"
    ]  # fmt: skip


def test_a_worker_that_multiprocessing_has_spawned_is_told_by_who_started_it() -> None:
    rows = [
        {**row(pid), "job": "pool-1", "ppid": ppid}
        for pid, ppid in ((1, 0), (2, 1), (3, 1), (4, 9))
    ]
    assert list_commands(rows, ["pool.py", WORKER, "other.py", WORKER]) == [
        "pool.py", "\N{BOX DRAWINGS LIGHT UP AND RIGHT} started by 1", "other.py", WORKER
    ]  # fmt: skip


def test_a_title_says_more_than_a_command() -> None:
    rows = [row(1, title="gunicorn: master [shop]"), row(2, 1, "gunicorn: worker [shop]")]
    assert list_commands(rows, ["gunicorn shop"] * 2) == [
        "gunicorn: master [shop]", "gunicorn: worker [shop]"
    ]  # fmt: skip


def test_ps_shows_a_forked_child_below_its_parent(run, root, sonde_cli) -> None:
    run(FORKS, SONDE="1", SONDE_COLLECTOR="off")
    shown = sonde_cli("ps").stdout
    (child,) = [line for line in shown.splitlines() if "└ forked by" in line]
    (parent,) = [line for line in shown.splitlines() if line.endswith(" program.py")]
    assert child.endswith(f"forked by {parent.split()[0]}")
