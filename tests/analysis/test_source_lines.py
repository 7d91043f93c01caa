"""Lines of source text."""

from __future__ import annotations

from pathlib import Path

from sonde.analysis.source_lines import read_source


def test_source_text_is_shown_unless_the_file_was_changed_since(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text("a = 1\n  b = 2\n")
    later = file.stat().st_mtime_ns + 1
    assert read_source(str(file), 2, later) == "b = 2"
    assert read_source(str(file), 2, later - 10**9) == ""
    assert read_source(str(tmp_path / "gone.py"), 1, later) == ""
