"""A recording for many queries: each table is read once."""

from __future__ import annotations

import pytest

import sonde
from conftest import wait_for
from sonde.collector.drain import Drain, seal
from sonde.session import Session
from sonde.store.catalog import list_recorded
from sonde.store.held import HeldRecording
from sonde.store.recording import open_recording
from support.handmade_machine import OFF, Machine

COUNT = "SELECT COUNT(*) AS n FROM system.cpu"


def count(recording: HeldRecording) -> int:
    return recording.query(COUNT)["n"][0].as_py()


def test_what_was_read_stays_and_a_result_can_be_kept() -> None:
    folder = sonde.start(**OFF)
    assert folder is not None
    machine = Machine()
    machine.write_reading()
    with HeldRecording(open_recording(folder).sessions) as held:
        assert held.find_empty(["system.cpu", "python.torch_step"]) == {"python.torch_step"}
        assert count(held) == 1
        machine.write_reading()
        assert count(held) == 1
        held.keep("doubled", "SELECT 2 * COUNT(*) AS n FROM system.cpu")
        assert held.query("SELECT n FROM doubled")["n"].to_pylist() == [2]
        assert held.fetch("SELECT n, 'a' AS text FROM doubled") == (["n", "text"], [(2, "a")])
        assert held.keep("doubled", "SELECT 3 AS n") == "doubled_1"  # another query's
        assert held.keep("doubled", "SELECT 3 AS n") == "doubled_1"
        assert held.fetch("FROM doubled, doubled_1")[1] == [(2, 3)]
        moments = "SELECT ts FROM system.cpu"
        assert held.fetch(moments) == (["ts"], [(held.query(moments)["ts"][0].as_py(),)])
        with pytest.raises(sonde.Error, match="only be read"):
            held.query("DROP TABLE system.cpu")
    assert count(HeldRecording(open_recording(folder).sessions)) == 2


def test_tables_that_were_half_made_when_a_file_vanished_are_made_anew(monkeypatch) -> None:
    folder = sonde.start(**OFF)
    assert folder is not None
    Machine().write_reading()
    opened = list[str]()
    inner = HeldRecording._open_table

    def open_table(self, connection, tables, verified):
        opened.append(tables[0].schema.table)
        if len(opened) == 2:
            raise FileNotFoundError("No such file or directory: as if it was just archived")
        return inner(self, connection, tables, verified)

    monkeypatch.setattr(HeldRecording, "_open_table", open_table)
    with HeldRecording(open_recording(folder).sessions) as held:
        both = "SELECT COUNT(*) AS n FROM system.cpu, system.memory"
        assert held.query(both)["n"].to_pylist() == [1]
    assert opened[0] in opened[2:]  # the first one, too


SPAN = "SELECT COUNT(*) AS n, ANY_VALUE(name) AS name FROM event.marker"
STACKS = "SELECT COUNT(*) >= 0 AS fine FROM python.stack"


def test_a_session_that_is_sealed_meanwhile_is_read_from_its_archive(run, root) -> None:
    run("import sonde\nsonde.start(collector='off')\nsonde.mark('here')\nsonde.stop()")
    session = open_recording(str(root)).sessions[0]
    with HeldRecording([session]) as held:
        held.find_empty([])  # opens the rings
        for path in session.find_rings():
            Drain(session, path).run(0.0, 0.0, ended=True)
        seal(Session(session.folder))
        assert held.query(SPAN).to_pylist() == [{"n": 1, "name": "here"}]
        assert held.query(STACKS)["fine"].to_pylist() == [True]


def test_archived_tables_have_the_rows_and_types_that_any_recording_gives(run, root) -> None:
    run("import sonde\nsonde.start(stack_every='5ms')\nimport time\ntime.sleep(0.3)\nsonde.stop()")
    session = open_recording(str(root)).sessions[0]
    wait_for(lambda: session.read_sealed() is not None)
    whole = open_recording(str(root))
    with HeldRecording(whole.sessions) as held:
        empty = held.find_empty(schema.table for schema in held.tables())
        assert "python.torch_step" in empty
        assert "python.stack_sample" not in empty
        for name in sorted({"python.torch_step", "python.frame", "python.stack", *RECORDED}):
            sql = f"SELECT * FROM {name} ORDER BY ALL"
            assert held.query(sql).equals(whole.query(sql)), name


RECORDED = [schema.table for schema in list_recorded()]
