"""Names are data: on a terminal they are shown, and never obeyed."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import cli
from sonde.cli import _progress, _terminal
from sonde.session.target import find_sessions

HOSTILE = "\x1b]0;owned\x07\x9b2J\x1b[2J\x1b[31mred\r"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CURSOR = re.compile(r"\x1b\[(\?1049|\?25)?[hlHJK]")


def test_everything_but_lines_and_our_colours_is_escaped() -> None:
    text = f"\x1b[1mbold\x1b[0m\t{HOSTILE}\n\udc80\u202e"
    assert _terminal.clean_text(text) == (
        "\x1b[1mbold\x1b[0m\t\\x1b]0;owned\\x07\\x9b2J\\x1b[2J\x1b[31mred\\r\n\\udc80\\u202e"
    )


def test_a_text_that_we_do_not_colour_has_no_colour() -> None:
    assert _terminal.clean_lines("a\t\x1b[31mb\n\x9b1m") == "a\t\\x1b[31mb\n\\x9b1m"


def test_our_own_control_sequences_are_sent_as_they_are() -> None:
    file = io.StringIO()
    stream = _terminal.Terminal(file)
    stream.writelines(["\x1b[K", "a"])
    _terminal.send(stream, "\x1b[K")  # type: ignore[arg-type]
    assert file.getvalue() == "\\x1b[Ka\x1b[K"


@pytest.fixture
def pid(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A recording of this process, in which every name is hostile."""
    monkeypatch.setattr(sys, "orig_argv", ["python", HOSTILE, "\udc80"])
    monkeypatch.setenv("SONDE_JOB", f"job{HOSTILE}")
    done = threading.Event()
    code = done.wait.__func__.__code__  # type: ignore[attr-defined]
    names = {"wait": done.wait}
    exec("def hostile():\n    wait()\n", names)
    names["hostile"].__code__ = names["hostile"].__code__.replace(  # type: ignore[attr-defined]
        co_name=HOSTILE, co_filename=HOSTILE, **_qualified(code)
    )
    thread = threading.Thread(target=names["hostile"], name=HOSTILE)
    thread.start()
    session = sonde.start(collector="off")
    with sonde.span(HOSTILE, **{"attribute": HOSTILE}):
        sonde.counter(HOSTILE, 1)
        sonde.mark(HOSTILE)
    assert session is not None
    wait_for(lambda: find_sessions(str(os.getpid()), os.environ["SONDE_DIR"]))
    yield os.getpid()
    done.set()
    thread.join()


def _qualified(code: object) -> dict[str, str]:
    return {"co_qualname": HOSTILE} if hasattr(code, "co_qualname") else {}


def show(monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[int, str]:
    """Run a command on a terminal; return its exit code and all that the terminal got."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    pieces: list[bytes] = []

    def read() -> None:
        while True:
            try:
                pieces.append(os.read(ours, 65536))
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w", encoding="utf-8") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        patch.setattr(sys, "stderr", file)
        patch.setenv("COLUMNS", "400")
        code = cli.main([str(word) for word in words])
    reader.join()
    os.close(ours)
    return code, b"".join(pieces).decode()


def check(drawn: str) -> None:
    rest = CURSOR.sub("", COLOUR.sub("", drawn))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", rest.replace("\r", "")), repr(rest)


@pytest.mark.parametrize("command", (
    ("stacks", "PID"), ("ps",), ("ps", "--all"), ("events", "PID"), ("top", "PID", "--once"),
    ("query", "PID", "SELECT * FROM sonde.session"), ("tables", "PID"),
    ("query", "PID", "SELECT * FROM sonde.session", "--format", "csv"),
    ("query", "PID", f'SELECT 1 AS "{HOSTILE}"'), ("query", "PID", f"SELECT '{HOSTILE}' FROM x"),
    ("query", "PID", f'SELECT 1 AS "{HOSTILE}"', "--format", "csv"),
    ("config", f"{HOSTILE}"), ("stacks", f"/{HOSTILE}\udc80"), (HOSTILE,),
    ("export", "PID", "--to", "collapsed", "-o", "-"), ("export", "PID", "--to", "chrome", "-o", "-"),
    ("advise", "PID"), ("profile", "list"), ("modules", "PID"),
))  # fmt: skip
def test_no_name_reaches_the_terminal_as_a_control_sequence(
    command: tuple[str, ...], pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(pid) if word == "PID" else word for word in command]
    _code, drawn = show(monkeypatch, *words)
    check(drawn)


def test_a_name_that_is_not_text_is_no_reason_to_fail(pid: int, sonde_cli, tmp_path: Path) -> None:
    for words in (("stacks", pid), ("ps",), ("query", pid, "SELECT command FROM sonde.session")):
        done = sonde_cli(*words)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done
        assert "udc80" in done.stdout
    for form in ("csv", "json", "arrow", "parquet"):
        done = sonde_cli("ps", "--format", form, "-o", tmp_path / form)
        assert done.returncode == 0 and done.stderr == "", done
        assert b"udc80" in (tmp_path / form).read_bytes()


@pytest.mark.parametrize("words", (
    ("ps", "--format", "csv"), ("tree", "PID", "--thread", "nobody"), ("stacks", "/\x1b[31mred"),
))  # fmt: skip
def test_no_colour_of_a_name_reaches_the_terminal(
    words: tuple[str, ...], pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _code, drawn = show(monkeypatch, *(str(pid) if word == "PID" else word for word in words))
    assert "31mred" in drawn and "\x1b[31mred" not in drawn


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_seconds_is_said_on_a_terminal_until_it_is_done(
    monkeypatch, is_terminal: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    with _progress.say("comparing a\x1b with b"):
        assert ("comparing a\\x1b with b…" in screen.getvalue()) == is_terminal
    assert screen.getvalue().endswith("\r\x1b[K") if is_terminal else not screen.getvalue()
