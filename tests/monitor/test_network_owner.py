"""Whose traffic the network's numbers are."""

from __future__ import annotations

import os
from pathlib import Path

from sonde.monitor.network_owner import has_own_network


def make(proc: Path, processes: dict[int, tuple[int, str]]) -> str:
    """A /proc with these processes: their parents and their network namespaces."""
    for pid, (parent, namespace) in processes.items():
        (proc / str(pid) / "ns").mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 0 0\n")
        (proc / namespace).touch()
        os.link(proc / namespace, proc / str(pid) / "ns" / "net")
    return str(proc)


def test_a_tree_that_is_alone_in_its_namespace_has_its_own_network(tmp_path: Path) -> None:
    proc = make(tmp_path, {1: (0, "host"), 7: (1, "own"), 8: (7, "own"), 9: (8, "own")})
    assert has_own_network(7, proc) and not has_own_network(8, proc)
    assert has_own_network(1, proc)


def test_a_neighbour_in_the_namespace_shares_the_network(tmp_path: Path) -> None:
    proc = make(tmp_path, {1: (0, "host"), 7: (1, "own"), 8: (1, "own")})
    assert not has_own_network(7, proc)


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    assert not has_own_network(7, make(tmp_path, {1: (0, "host")}))
