"""`sonde modules` on a terminal: which columns a narrow one does without."""

from __future__ import annotations

from types import SimpleNamespace

from sonde.cli.modules import _fit


def test_a_narrow_terminal_gets_fewer_columns_and_every_number_in_full() -> None:
    nodes = [SimpleNamespace(name="DistributedDataParallel")]
    columns = [("module", False, lambda node: node.name)]
    columns += [(name, True, lambda _: "12.3 %") for name in ("share", "total", "self", "spread")]
    columns += [(name, False, lambda _: "rank 0: 913 µs") for name in ("fastest", "slowest")]

    def show(room: int) -> list[str]:
        return [name for name, _right, _show in _fit(columns, nodes, room)]  # type: ignore[arg-type]

    assert show(200) == ["module", "share", "total", "self", "spread", "fastest", "slowest"]
    assert show(80) == ["module", "share", "total", "self", "spread", "slowest"]
    assert show(60) == ["module", "share", "total", "slowest"]
