"""Every kind of file in docs/format.md, read from tests/golden by the real readers."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import sonde
from sonde import _core
from sonde.errors import Newer
from sonde.session import (
    Session,
    captures,
    crash_file,
    files,
    heap_look,
    last_stacks,
    native_stacks,
    pstats_file,
    records,
    runs,
    stack_table,
    texts,
    torch_records,
)
from sonde.session.ring import Ring
from sonde.store import archive
from support import torch_traces
from support.places import DOCS, GOLDEN

ENDED, SEALED = str(GOLDEN / "ended"), str(GOLDEN / "sealed")


@pytest.fixture
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def query(folder: str, sql: str) -> list[dict[str, object]]:
    return sonde.open(folder).query(sql).to_pylist()


# ---- the document and the folders ----------------------------------------------------------------


def list_kinds() -> list[str]:
    text = (DOCS / "format.md").read_text()
    tree = text.split("A session holds these files")[1].split("```")[1]
    return [re.sub(r"<[a-z]+>", "*", line.split()[0]) for line in tree.strip().splitlines()]


def list_golden() -> list[str]:
    found = (
        path.relative_to(GOLDEN / name)
        for name in ("ended", "sealed")
        for path in (GOLDEN / name).rglob("*")
    )
    return [str(path) for path in found if "." in path.name or path.name in NAMELESS]


NAMELESS = ("alive", "control", "lock", "state", "log")


@pytest.mark.parametrize("kind", list_kinds())
def test_every_kind_of_file_has_a_golden_one(kind: str) -> None:
    assert fnmatch.filter(list_golden(), kind), f"tests/golden/make.py does not make {kind}"


def test_every_golden_file_is_of_a_documented_kind() -> None:
    paths = [
        p for p in list_golden() if not Path(ENDED, p).is_dir() and not Path(SEALED, p).is_dir()
    ]
    unknown = [path for path in paths if not any(fnmatch.fnmatch(path, k) for k in list_kinds())]
    assert len(paths) > 40 and not unknown


def test_the_document_names_every_key_of_every_record() -> None:
    text = (DOCS / "format.md").read_text()
    kinds = [
        records.Meta, records.Sealed, records.SealedTable, records.Exit, records.MemoryKills, records.Locals, records.LocalsFrame,
        records.RunAbout, records.RunEnd, records.SnapshotAbout, records.Expired,
        records.ProfilerRequests, records.ProfilerRequest, records.ProfilerAnswer,
        torch_records.CaptureAbout, torch_records.CaptureGo, torch_records.Oom,
        torch_records.OomSegments, torch_records.OomBlocks, torch_records.OomStep,
        last_stacks.LastStacks, last_stacks.LastThread, last_stacks.LastLock, heap_look.HeapLook,
        native_stacks.StacksAtFault, native_stacks.ThreadAtFault,
    ]  # fmt: skip
    missing = {key for kind in kinds for key in kind.__annotations__ if f"`{key}`" not in text}
    assert not missing


def test_the_end_of_the_process_is_read(make: ModuleType) -> None:
    known = Session(ENDED).read_exit()
    assert known is not None and known.dump() == make.EXIT.dump()
    kept = records.MemoryKills.read(str(Path(ENDED, files.MEMORY_KILLS)))
    assert kept.dump() == make.KILLS.dump()


def test_what_was_wished_of_the_heap_is_read(make: ModuleType) -> None:
    assert heap_look.read_look(ENDED).dump() == make.LOOK.dump()


def test_what_a_fault_left_is_read(make: ModuleType) -> None:
    found = crash_file.CrashFile(str(Path(ENDED, crash_file.NAME)))
    assert (found.t_ns, found.thread, found.threads) == (5, 100, [])
    native = native_stacks.StacksAtFault.read(str(Path(ENDED, native_stacks.NAME)))
    assert native.dump() == make.AT_FAULT.dump()


def test_the_format_version_is_the_documented_one() -> None:
    text = (DOCS / "format.md").read_text()
    assert f"version {_core.FORMAT_VERSION}" in text and files.VERSION == _core.FORMAT_VERSION


# ---- rings, texts, archive -----------------------------------------------------------------------


@pytest.mark.parametrize("folder", [ENDED, SEALED])
def test_every_value_of_every_kind_of_column_is_read(folder: str, make: ModuleType) -> None:
    rows = query(
        folder, "SELECT * EXCLUDE (t_ns, ts, host, pid, rank) FROM job.sample ORDER BY t_ns"
    )
    assert [tuple(row.values()) for row in rows] == make.rows()
    (loss,) = query(folder, "SELECT * FROM sonde.loss WHERE table_name = 'job.sample'")
    assert loss["written"] == loss["kept"] == 3
    sources = query(folder, "SELECT source, state FROM sonde.source")
    assert {"source": "gc", "state": "off"} in sources


def test_a_ring_tells_its_schema_and_the_texts_are_numbered() -> None:
    ring = Ring(str(Path(ENDED, "job.sample.ring")))
    assert (ring.schema.table, ring.schema.kinds, ring.head) == ("job.sample", "qbhiqBHIQd?t", 3)
    assert {"first", "é🦀", "golden span"} <= set(texts.read_texts(ENDED))


def test_what_retention_removed_is_counted() -> None:
    assert archive.read_expired(Session(SEALED)) == {"job.expired": 5}
    (loss,) = query(SEALED, "SELECT * FROM sonde.loss WHERE table_name = 'job.expired'")
    assert (loss["written"], loss["expired"], loss["kept"]) == (5, 5, 0)


def test_the_last_stacks_of_a_sealed_session_are_read() -> None:
    found = last_stacks.read_last_stacks(Session(SEALED))
    assert found is not None and [one.name for one in found[0]] == ["MainThread"]
    assert "make" in [frame.func for frame in found[0][0].frames] and found[1] == []


# ---- who and how it ended ------------------------------------------------------------------------


def test_meta_and_settings_are_typed() -> None:
    session = Session(ENDED)
    assert (session.id, session.host, session.meta.argv) == (
        "ended",
        "golden",
        ["python", "train.py"],
    )
    assert session.meta.format == files.VERSION and session.meta.config["stack.every"] == 0.001
    config = session.read_config()
    assert (config["ring.bytes"], config["stack.every"], config["source.torch"]) == (
        4096, 0.001, False,
    )  # fmt: skip


def test_a_sealed_folder_keeps_its_end_on_every_machine() -> None:
    assert Session(SEALED).find_state() == "ended"
    assert Session(ENDED).find_state() == "unknown"  # recorded elsewhere
    sealed = Session(SEALED).read_sealed()
    assert sealed is not None and sealed.tables["job.sample"].head == 3
    assert sealed.end_wall_ns > Session(SEALED).start_wall_ns


def test_the_control_page_tells_state_and_runs() -> None:
    control = Session(ENDED).read_control()
    assert (control["state"], control["run_asked"], control["run_ended"]) == (_core.STOPPED, 2, 2)
    assert control["inspected"] == 1


def test_a_newer_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    meta = files.read_checked(str(Path(ENDED, "meta.json")))
    files.write_checked(str(folder / "meta.json"), {**meta, "format": 99})
    with pytest.raises(Newer, match="newer sonde; update"):
        sonde.open(str(folder))


# ---- stacks, events, locals ----------------------------------------------------------------------


def test_the_stack_table_has_the_work_and_its_time() -> None:
    nodes = stack_table.read_nodes(Session(ENDED))
    mine = [at for at in range(len(nodes)) if nodes.frame(at).func == "work"]
    assert mine and not nodes.damaged
    assert sum(nodes.wall_ns[at] for at in mine) > 200_000_000
    names = [nodes.frame(at).func for at in nodes.walk(mine[-1])]
    assert names[:2] == ["work", "write_all"]


@pytest.mark.parametrize("folder", [ENDED, SEALED])
def test_the_sums_of_events_are_read(folder: str) -> None:
    rows = query(folder, "SELECT name, kind, count FROM event.summary ORDER BY name")
    assert {(row["name"], row["kind"]) for row in rows} == {
        ("golden span", "span"), ("golden counter", "counter"), ("golden marker", "marker"),
    }  # fmt: skip
    assert {row["count"] for row in rows} == {3 if folder == ENDED else 1}


def test_locals_are_read() -> None:
    found = stack_table.read_locals(Session(ENDED))
    (locals_,) = (value for key, value in found.items() if key[2] == "inspect")
    assert locals_["timeout_s"] == "10"


# ---- snapshots, runs, captures -------------------------------------------------------------------


def test_a_snapshot_is_read_by_pstats_and_by_us() -> None:
    import pstats

    for kind in ("delta", "total"):
        path = str(Path(ENDED, "snapshots", f"000001-{kind}.prof"))
        stats, (about,) = pstats_file.load(path)
        assert (about.kind, about.number, about.host) == (kind, 1, "golden")
        (work,) = (value for (_file, _line, name), value in stats.items() if name == "work")
        assert 0.1 < work[3] < 1
        assert pstats.Stats(path).total_tt > 0.1


def test_the_next_snapshot_goes_on_from_the_state(tmp_path: Path) -> None:
    from sonde.session import snapshots

    shutil.copytree(ENDED, tmp_path / "copy")
    session = Session(str(tmp_path / "copy"))
    assert snapshots.count(session) == 1
    _stats, (about,) = pstats_file.load(snapshots.take(session)["delta"])
    _stats, (first,) = pstats_file.load(snapshots.name_file(session, 1, "delta"))
    assert (about.number, about.start_ns) == (2, first.end_ns)


def test_runs_are_read_with_and_without_a_result(tmp_path: Path) -> None:
    shutil.copytree(ENDED, tmp_path / "copy")
    first, second = runs.list_runs(Session(str(tmp_path / "copy")))
    assert (first.state, first.about.name) == ("SUCCEEDED", "golden run")
    assert (second.state, second.about.name) == ("PROCESSING", "no result yet")
    for run in (first, second):
        result = run.result()  # of the second it is worked out now
        assert 0.2 < result.duration_s < 2 and result.table("wall")[0]["func"] == "work"


def test_a_capture_is_read(make: ModuleType) -> None:
    about = captures.read_about(ENDED, torch_traces.ID)
    assert (about.state, about.steps, about.thread) == ("done", 2, torch_traces.MAIN)
    (row,) = query(ENDED, "SELECT state, steps, first_step FROM python.torch_capture")
    assert row == {"state": "done", "steps": 2, "first_step": 5}
    (kernels,) = query(ENDED, "SELECT COUNT(*) AS n FROM python.torch_kernel")
    assert kernels == {"n": 3}
    go = captures.name_file(ENDED, torch_traces.ID, captures.GO)
    assert torch_records.CaptureGo.read(go).first_step == 5
    assert torch_records.CaptureStop.read(captures.name_file(ENDED, torch_traces.ID, captures.STOP))


# ---- the rest ------------------------------------------------------------------------------------


def test_other_files_are_read_as_they_were_written(make: ModuleType) -> None:
    for name, written in (
        ("oom-1.json", make.OOM),
        ("profiler.json", make.REQUESTS),
        ("profiler.answer.json", make.ANSWER),
    ):
        assert type(written).read(str(Path(ENDED, name))).dump() == written.dump()
    assert Path(ENDED, "log").read_text().endswith("Z golden line\n")
