"""Names that found no room: every face says so, with the same words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sonde
from sonde import cli
from sonde.collector.drain import Drain, seal
from sonde.session import Session
from sonde.session.missing_names import describe_missing_names
from sonde.tui.process import TopProcess
from support.missing_tools import find_missing

LINE = re.compile(r"[\d,]+ names found no room: the text table of 8 KiB is full; raise text\.bytes")
FILL = """
import time
import sonde
class Item:
    text: str
emit = sonde.table(Item)
sonde.start(collector=False, text_bytes="8KiB", **{"stack.every": "1ms"})
for i in range(200):
    emit("a text of the program, number %d" % i)
    with sonde.span("span %d" % i): sonde.mark("mark %d" % i); sonde.counter("counter %d" % i, i)
left_open = sonde.span("left open")
left_open.__enter__()
end = time.monotonic() + 0.2
for i in range(1000):
    scope = {"time": time}
    exec("def function_%d():\\n until = time.monotonic() + 0.002\\n"
         " while time.monotonic() < until: sum(range(99))" % i, scope)
    scope["function_%d" % i]()
    if time.monotonic() > end: break
"""
DEEP = """
import time
import sonde
from sonde.session import Session
from sonde.session.missing_names import describe_missing_names
def dig(depth):
    if depth: return dig(depth - 1)
    while not describe_missing_names([session]) and time.monotonic() < end: sum(range(99))
end = time.monotonic() + 60
session = Session(sonde.start(collector=False, stack_bytes="16KiB", **{"stack.every": "1ms"}))
dig(400)
"""


@pytest.fixture
def session(run, root: Path) -> Session:
    run(FILL)
    (found,) = sonde.session.list_sessions(str(root))
    return found


def test_every_command_says_that_names_are_missing(
    session: Session, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = session.folder
    for words in (
        ("top", target, "--once", "--window", "start"),
        ("events", target),
        ("events", target, "--format", "json"),
        ("export", target, "--to", "collapsed", "-o", str(tmp_path / "collapsed")),
        ("query", target, "SELECT * FROM event.span"),
    ):
        code, said = cli.main(words), capsys.readouterr().err
        if code and (name := find_missing(said)):
            pytest.skip(f"{name} is not installed")
        assert code == 0
        assert LINE.fullmatch(said.removeprefix("sonde: ").rstrip("\n")), words
    cli.main(("modules", target))  # it has none, which may be why
    assert LINE.search(capsys.readouterr().err)


def test_stacks_say_that_names_are_missing(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(("stacks", session.folder))
    assert LINE.search(capsys.readouterr().out)
    cli.main(("stacks", session.folder, "--format", "json"))
    (shown,) = json.loads(capsys.readouterr().out)
    assert LINE.fullmatch(shown["notes"][-1])


def test_the_screen_says_that_names_are_missing(session: Session) -> None:
    assert any(LINE.fullmatch(line) for line in TopProcess(session).list_losses())


def test_queries_warn_once_that_names_are_missing(session: Session) -> None:
    recording = sonde.open(session.folder)
    with pytest.warns(UserWarning, match=LINE.pattern) as told:
        rows = recording.query("SELECT state, detail FROM sonde.source WHERE source = 'text table'")
        recording.query("SELECT 1")
    assert len(told) == 1
    (row,) = rows.to_pylist()
    assert row["state"] == "full" and LINE.fullmatch(row["detail"])


def test_a_sealed_session_still_knows(session: Session) -> None:
    before = describe_missing_names([session])
    for path in session.find_rings():
        Drain(session, path).run(0.0, 0.0, ended=True)
    seal(session)
    assert session.read_sealed() is not None
    assert describe_missing_names([session]) == before != {}


def test_stacks_without_room_are_said_alike(run, root: Path) -> None:
    run(DEEP)
    (session,) = sonde.session.list_sessions(str(root))
    (line,) = describe_missing_names([session]).values()
    assert re.fullmatch(
        r"[\d,]+ samples found no room for their stack: the stack table of 16 KiB is full; "
        r"raise stack\.bytes",
        line,
    )
