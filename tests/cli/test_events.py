"""`sonde events` on a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

from sonde.cli.events import _Column, _draw_block


def test_columns_for_which_there_is_no_room_are_named(monkeypatch) -> None:
    names = ("region", "count", "min", "p50", "p95", "p99", "max")
    columns = [_Column(name, name != "region", lambda _: "12.3 ms") for name in names]

    def draw(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        file = io.StringIO()
        file.isatty = lambda: True  # type: ignore[method-assign]
        _draw_block([SimpleNamespace()], columns, file)
        return file.getvalue()

    assert "no room" not in draw(80)
    narrow = draw(50)
    assert "p50" not in narrow.splitlines()[0]
    assert "\nno room for p50, p99: " in narrow
