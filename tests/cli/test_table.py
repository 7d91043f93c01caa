"""Tables for people: they fit, and a number is never cut."""

from __future__ import annotations

import io
import sys

import pytest

from sonde.cli import _pager, _table, main
from sonde.cli.tables import _describe
from sonde.store import catalog

BIG = 1_790_000_000_123_456_789


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(
    monkeypatch: pytest.MonkeyPatch, columns: int, names: list[str], *rows: tuple
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    _table.draw_table(names, rows, screen)
    return screen.getvalue().splitlines()


def test_text_is_cut_before_a_number_is_and_columns_are_left_out_last(monkeypatch) -> None:
    names = ["t_ns", "command", "n", "wall_ns", "rank"]
    row = (BIG, "python " + "x" * 90, 7, BIG, None)
    wide = draw(monkeypatch, 80, names, row)
    assert len(wide) == 2 and max(map(len, wide)) <= 80
    assert wide[1].split()[0] == str(BIG) and wide[1].split()[-2] == str(BIG) and "…" in wide[1]
    head, line, *note = draw(monkeypatch, 40, names, row)
    assert head.split() == ["t_ns", "command", "n"] and line.split()[0] == str(BIG)
    assert max(map(len, note)) <= 40
    assert " ".join(map(str.strip, note)) == "no room for wall_ns, rank: -x shows all, one a line"


def test_a_path_is_cut_at_its_beginning_and_a_name_to_be_typed_not_at_all(monkeypatch) -> None:
    row = ("/usr/lib/python3.11/json/encoder.py", "train-language-model-4242")
    _head, line = draw(monkeypatch, 40, ["file", "job"], row)
    assert line.split()[0].startswith("…") and line.split()[0].endswith("encoder.py")
    screen = Screen()
    _table.draw_table(["file", "job"], [row], screen, keep=("job",))
    assert row[1] in screen.getvalue() and max(map(len, screen.getvalue().splitlines())) <= 40


def test_the_line_of_a_place_is_never_cut(monkeypatch) -> None:
    row = ("_SelectorSocketTransport.write", "asyncio/selector_events.py:1065")
    _head, line = draw(monkeypatch, 50, ["function", "where"], row)
    assert line.endswith("selector_events.py:1065") and "…" in line and len(line) <= 50


def test_a_sentence_in_the_last_column_goes_on_in_the_next_line(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [("stack.every", "time between two samples"), ("x", "short")]
    wrapped = _table.wrap_text(("setting", "meaning"), rows, Screen())
    assert draw(monkeypatch, 30, ["setting", "meaning"], *wrapped) == [
        "setting      meaning", "stack.every  time between two", "             samples",
        "x            short",
    ]  # fmt: skip
    assert _table.wrap_text(("setting", "meaning"), rows, io.StringIO()) == rows


def test_vertical_shows_everything(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Screen()
    _table.draw_vertical(["t_ns", "name"], [(BIG, "y" * 50), (1, None)], screen)
    assert screen.getvalue() == (
        f"row 1\n  t_ns  {BIG}\n  name  {'y' * 50}\nrow 2\n  t_ns  1\n  name  \N{EN DASH}\n"
    )


@pytest.mark.parametrize(("lines", "pager", "shown"), [
    (3, "sed s/^/>/", ">one\n>two\n>three\n"),
    (9, "sed s/^/>/", "one\ntwo\nthree\n"),
    (3, "cat", "one\ntwo\nthree\n"),
    (3, "no-such-pager", "one\ntwo\nthree\n"),
])  # fmt: skip
def test_only_what_is_longer_than_the_screen_is_paged(
    lines: int, pager: str, shown: str, monkeypatch, capfd
) -> None:
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SONDE_PAGER", pager)
    _pager.show(lambda file: print("one\ntwo\nthree", file=file))
    assert capfd.readouterr().out == shown


def test_help_that_is_longer_than_the_screen_is_paged(monkeypatch, capfd) -> None:
    for name, value in (("LINES", "9"), ("COLUMNS", "80"), ("SONDE_PAGER", "sed s/^/>/")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit):
        main(["help", "pause"])
    assert ">usage: sonde pause" in capfd.readouterr().out


def test_on_a_terminal_tables_are_described_one_after_the_other(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    schemas = [
        one for one in catalog.list_tables() if one.table in ("python.gc_pause", "event.span")
    ]
    lines = list(_describe(schemas, Screen()))
    assert max(map(len, lines)) <= 60
    at = next(at for at, line in enumerate(lines) if line.startswith("python.gc_pause  A pause"))
    assert lines[at - 1] == "" and sum("python.gc_pause" in line for line in lines) == 1
    assert any(line.split()[:4] == ["dur_ns", "i64", "ns", "duration"] for line in lines[at:])
