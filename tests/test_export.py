"""Exporters: each format is opened by the program it is for, and the numbers come back."""

from __future__ import annotations

import gzip
import io
import json
import os
import pstats
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

import sonde
from browser import drive, dump, find_outside
from conftest import wait_for
from handmade import HOSTILE, MS, START_NS, FakeRecording, record_training
from sonde import Error, plugins
from sonde.exporters import chrome
from sonde.profile import Frame, Process, Profile, Stack, Thread

NAMES = plugins.list_names("exporters")
WALL = 240 * MS  # of all threads of record_training()
CPU = 84 * MS


def load(name: str) -> ModuleType:
    return plugins.load("exporters", name)


def export(name: str, profile: Profile) -> bytes:
    exporter = load(name)
    file = io.StringIO() if exporter.TEXT else io.BytesIO()
    exporter.write(profile, file)
    written = file.getvalue()
    return written.encode() if isinstance(written, str) else written


def write(name: str, profile: Profile, folder: Path) -> Path:
    path = folder / f"out{load(name).SUFFIX}"
    path.write_bytes(export(name, profile))
    return path


# ---- all of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_exporter_says_its_suffix_its_kind_and_how_to_open_it(name: str) -> None:
    exporter = load(name)
    assert exporter.SUFFIX.startswith(".") and isinstance(exporter.TEXT, bool)
    assert exporter.OPEN.format(file="x")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weight", ["wall", "cpu", "gil"])
def test_equal_recordings_are_equal_files_whatever_the_order_of_rows(name: str, weight) -> None:
    one, other = record_training(), record_training()
    other.samples.reverse()
    other.frames = dict(reversed(other.frames.items()))
    assert export(name, one.profile(weight=weight)) == export(name, other.profile(weight=weight))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_sampled_is_an_error_not_an_empty_file(name: str) -> None:
    with pytest.raises(Error, match="no stack was sampled"):
        export(name, FakeRecording().profile())


@pytest.mark.parametrize("name", ["pstats", "collapsed", "speedscope", "svg"])
def test_a_weight_that_nothing_has_is_an_error_not_an_empty_file(name: str) -> None:
    with pytest.raises(Error, match="no gil time"):
        export(name, FakeRecording().see("a", 10, gil=False).profile(weight="gil"))


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_written(name: str) -> None:
    frames = [
        (f"f{chr(char)}", "d/é\U0001f980 ;&<>\"'.py", 2, 1)
        for char in (*range(1, 48), 0x2028, 0xFFFE)
    ]
    recording = FakeRecording().name(100, "t\n;\x1b[31m").see(frames, 10)
    assert export(name, recording.profile())


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_deeper_than_pythons_own_can_be_written(name: str) -> None:
    deep = [(f"f{depth}", "deep.py", depth, depth) for depth in range(3 * sys.getrecursionlimit())]
    assert export(name, FakeRecording().see(deep, 10).profile())


# ---- pstats ---------------------------------------------------------------------------------------


def read_pstats(profile: Profile, folder: Path) -> dict[str, tuple]:
    stats = pstats.Stats(str(write("pstats", profile, folder)))
    return {func: row for (_, _, func), row in stats.stats.items()}


def test_pstats_counts_samples_and_sums_seconds(tmp_path: Path) -> None:
    stats = pstats.Stats(str(write("pstats", record_training().profile(), tmp_path)))
    assert stats.total_tt == pytest.approx(WALL / 1e9)
    rows = {func: row[:4] for (_, _, func), row in stats.stats.items()}
    assert rows["main"] == (12, 12, 0.0, 0.12)
    assert rows["wait"] == (12, 12, 0.12, 0.12)
    assert rows["matmul"] == (6, 6, 0.06, 0.06)
    assert rows["backward"] == (4, 4, 0.02, 0.04)


def test_pstats_counts_a_function_that_calls_itself_once_per_sample(tmp_path: Path) -> None:
    rows = read_pstats(FakeRecording().see("main|fib|fib|fib", 10).profile(), tmp_path)
    assert rows["fib"][:4] == (1, 1, 0.01, 0.01)
    assert {caller[2]: row for caller, row in rows["fib"][4].items()} == {
        "main": (1, 1, 0.0, 0.01), "fib": (1, 1, 0.01, 0.01),
    }  # fmt: skip


def test_pstats_splits_a_function_by_its_callers(tmp_path: Path) -> None:
    callers = read_pstats(record_training().profile(weight="cpu"), tmp_path)["matmul"][4]
    assert {caller[2]: row for caller, row in callers.items()} == {
        "forward": (4, 4, 0.016, 0.016), "backward": (2, 2, 0.008, 0.008),
    }  # fmt: skip


def test_pstats_prints_itself_its_callers_and_its_callees(tmp_path: Path) -> None:
    path = write("pstats", record_training().profile(), tmp_path)
    out = io.StringIO()
    stats = pstats.Stats(str(path), stream=out).sort_stats("cumulative")
    stats.print_stats()
    stats.print_callers()
    stats.print_callees()
    assert "train.py:10(main)" in out.getvalue() and HOSTILE in out.getvalue()
    doubled = pstats.Stats(str(path), str(path))
    assert doubled.total_tt == pytest.approx(2 * WALL / 1e9)


def test_gprof2dot_reads_pstats(tmp_path: Path) -> None:
    pytest.importorskip("gprof2dot")
    path = write("pstats", record_training().profile(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "gprof2dot", "-f", "pstats", "-n0", "-e0", str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"train:20:train\\n33.33%\\n\(0.00%\)\\n8", done.stdout), done.stdout


def test_snakeviz_reads_pstats(tmp_path: Path) -> None:
    pytest.importorskip("snakeviz")
    from snakeviz.stats import json_stats, table_rows

    stats = pstats.Stats(str(write("pstats", record_training().profile(), tmp_path)))
    rows = {row[5]: row for row in table_rows(stats)}
    assert rows["train.py:40(matmul)"][1] == "0.06"
    tree = json_stats(stats)
    assert {key.rpartition("(")[2] for key in tree} >= {"main)", "train)", "wait)"}


def test_flameprof_reads_pstats(tmp_path: Path) -> None:
    pytest.importorskip("flameprof")
    import flameprof

    stats = pstats.Stats(str(write("pstats", record_training().profile(), tmp_path)))
    out = io.StringIO()
    flameprof.render(stats.stats, out, "svg")
    texts = [node.text or "" for node in ElementTree.fromstring(out.getvalue()).iter()]
    assert any("main" in text for text in texts) and any("matmul" in text for text in texts)


# ---- speedscope ------------------------------------------------------------------------------------


def test_speedscope_has_a_profile_per_thread_whose_weights_add_up() -> None:
    for weight, total in (("wall", WALL), ("cpu", CPU)):
        document = json.loads(export("speedscope", record_training().profile(weight=weight)))
        assert sum(sum(part["weights"]) for part in document["profiles"]) == total
        for part in document["profiles"]:
            assert len(part["samples"]) == len(part["weights"])
            assert part["endValue"] - part["startValue"] == sum(part["weights"])
            assert all(at < len(document["shared"]["frames"]) for s in part["samples"] for at in s)
    assert [part["name"] for part in document["profiles"]] == [
        "train.py (rank 0, alpha pid 100): MainThread (100)",
        "train.py (rank 1, beta pid 100): MainThread (100)",
    ]  # the loader used no CPU


def test_speedscope_keeps_the_order_of_time_and_joins_equal_neighbours() -> None:
    recording = FakeRecording().see("a|b", 10).see("a|b", 20).see("a|c", 30).see("a|b", 40)
    document = json.loads(export("speedscope", recording.profile()))
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    (part,) = document["profiles"]
    named = ["|".join(frames[at] for at in sample) for sample in part["samples"]]
    assert list(zip(named, part["weights"], strict=True)) == [
        ("a|b", 20 * MS), ("a|c", 10 * MS), ("a|b", 10 * MS),
    ]  # fmt: skip


def test_speedscope_fits_the_published_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    folder = find_outside("SPEEDSCOPE", "the unpacked npm package speedscope")
    schema = json.loads((folder / "dist/release/file-format-schema.json").read_text())
    jsonschema.validate(json.loads(export("speedscope", record_training().profile())), schema)


@pytest.mark.parametrize(
    ("name", "matmul", "where"),
    [("speedscope", "30.00ms (50%)", ""), ("pprof", "60.00ms (25%)", ""),
     ("collapsed", "60,000,000 (25%)", " (/job/train.py:40)")],
)  # fmt: skip
def test_speedscope_itself_shows(name: str, matmul: str, where: str, tmp_path: Path) -> None:
    import base64

    folder = find_outside("SPEEDSCOPE", "the unpacked npm package speedscope")
    path = write(name, record_training().profile(), tmp_path)
    # As its own command line does it.
    script = tmp_path / "load.js"
    packed = base64.b64encode(path.read_bytes()).decode()
    script.write_text(f'speedscope.loadFileFromBase64("{path.name}", "{packed}")')
    page = (folder / "dist/release/index.html").as_uri()
    shown = dump(f"{page}#localProfilePath={script}&view=sandwich")
    text = re.sub(r"(<[^>]*>)+", "\n", shown)
    assert f"\n{matmul}\n{matmul}\nmatmul{where}\n" in text, text[-2000:]
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text and "<img src=x" not in shown


# ---- pprof ------------------------------------------------------------------------------------------

_KINDS = {"i": 3, "u": 4, "b": 8, "s": 9}
_MESSAGES = {  # field: (number, kind, repeated); a word is a message of its own
    "ValueType": {"type": (1, "i", 0), "unit": (2, "i", 0)},
    "Label": {"key": (1, "i", 0), "str": (2, "i", 0), "num": (3, "i", 0), "num_unit": (4, "i", 0)},
    "Sample": {"location_id": (1, "u", 1), "value": (2, "i", 1), "label": (3, "Label", 1)},
    "Mapping": {"id": (1, "u", 0), "filename": (5, "i", 0), "has_functions": (7, "b", 0),
                "has_filenames": (8, "b", 0), "has_line_numbers": (9, "b", 0)},
    "Line": {"function_id": (1, "u", 0), "line": (2, "i", 0)},
    "Location": {"id": (1, "u", 0), "mapping_id": (2, "u", 0), "address": (3, "u", 0),
                 "line": (4, "Line", 1)},
    "Function": {"id": (1, "u", 0), "name": (2, "i", 0), "system_name": (3, "i", 0),
                 "filename": (4, "i", 0), "start_line": (5, "i", 0)},
    "Profile": {"sample_type": (1, "ValueType", 1), "sample": (2, "Sample", 1),
                "mapping": (3, "Mapping", 1), "location": (4, "Location", 1),
                "function": (5, "Function", 1), "string_table": (6, "s", 1),
                "time_nanos": (9, "i", 0), "duration_nanos": (10, "i", 0),
                "period_type": (11, "ValueType", 0), "period": (12, "i", 0),
                "default_sample_type": (14, "i", 0)},
}  # fmt: skip


def decode_pprof(packed: bytes):
    """The message as Google's own decoder reads it."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = _KINDS.get(kind, 11)
            if kind not in _KINDS:
                added.type_name = f".p.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    decoded = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))()
    decoded.ParseFromString(gzip.decompress(packed))
    return decoded


def test_protobuf_reads_pprof_and_the_sums_are_right() -> None:
    found = decode_pprof(export("pprof", record_training().profile(weight="cpu")))
    texts = found.string_table
    assert texts[0] == ""
    assert [(texts[kind.type], texts[kind.unit]) for kind in found.sample_type] == [
        ("samples", "count"), ("wall", "nanoseconds"), ("cpu", "nanoseconds"), ("gil", "nanoseconds"),
    ]  # fmt: skip
    sums = [sum(values) for values in zip(*(sample.value for sample in found.sample), strict=True)]
    assert sums == [24, WALL, CPU, 60 * MS]
    assert texts[found.default_sample_type] == "cpu"
    assert (found.time_nanos, found.duration_nanos, found.period) == (START_NS, 60 * MS, 10 * MS)


def test_pprof_stacks_are_innermost_first_with_lines_and_labels() -> None:
    found = decode_pprof(export("pprof", record_training().profile(threads=["loader;0"])))
    texts = found.string_table
    functions = {function.id: function for function in found.function}
    places = {location.id: location.line[0] for location in found.location}
    lines = [places[at] for at in found.sample[0].location_id]
    named = [(texts[functions[line.function_id].name], line.line, functions[line.function_id].start_line) for line in lines]  # fmt: skip
    assert named == [("wait", 25, 20), ("run", 15, 10)]
    labels = {texts[label.key]: texts[label.str] or label.num for label in found.sample[0].label}
    assert labels == {
        "thread": "loader;0",
        "thread_id": 101,
        "host": "alpha",
        "pid": 100,
        "rank": 0,
    }


def run_pprof(*args: str) -> str:
    tool = [shutil.which("pprof")] if shutil.which("pprof") else ["go", "tool", "pprof"]
    if shutil.which(tool[0]) is None:
        pytest.skip("no pprof and no go here")
    return subprocess.run([*tool, *args], capture_output=True, text=True, check=True).stdout


def test_pprof_itself_reads_it(tmp_path: Path) -> None:
    path = str(write("pprof", record_training().profile(), tmp_path))
    top = run_pprof("-top", "-unit=ms", "-sample_index=cpu", path)
    assert re.search(r"24ms 28.57% .* 24ms 28.57%  matmul\n", top), top
    assert f"  {HOSTILE}\n" in top and "Duration: 60ms, Total samples = 84ms" in top
    assert "wall/nanoseconds[dflt]" in run_pprof("-raw", path)
    assert re.search(
        r"60ms .*matmul /job/train.py:45\n", run_pprof("-top", "-lines", "-unit=ms", path)
    )
    assert "120ms, 50.00% of 240ms" in run_pprof("-top", "-unit=ms", "-tagfocus=rank=0", path)


# ---- folded stacks -----------------------------------------------------------------------------------


def test_folded_stacks_add_up_and_keep_processes_and_threads_apart() -> None:
    lines = export("collapsed", record_training().profile()).decode().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == WALL
    assert (
        "train.py (rank 0, alpha pid 100);MainThread (100);main (/job/train.py:10);"
        "train (/job/train.py:20);forward (/job/train.py:30);matmul (/job/train.py:40) 20000000"
    ) in lines


def test_folded_stacks_of_one_process_begin_with_the_thread() -> None:
    recording = FakeRecording().name(100, "Main").see("a|b;c\nd", 10)
    text = export("collapsed", recording.profile()).decode()
    assert (
        text
        == "Main (100);a (/job/train.py:10);b:c\N{REPLACEMENT CHARACTER}d (/job/train.py:20) 10000000\n"
    )


def test_flamegraph_pl_draws_them(tmp_path: Path) -> None:
    script = find_outside("FLAMEGRAPH_PL", "Brendan Gregg's flamegraph.pl")
    path = write("collapsed", record_training().profile(), tmp_path)
    done = subprocess.run(
        ["perl", str(script), str(path)], capture_output=True, text=True, check=True
    )
    titles = [title.text for title in ElementTree.fromstring(done.stdout).iter("{http://www.w3.org/2000/svg}title")]  # fmt: skip
    assert "all (240,000,000 samples, 100%)" in titles
    assert "train (/job/train.py:20) (40,000,000 samples, 16.67%)" in titles
    assert f"{HOSTILE} (/job/train.py:20) (10,000,000 samples, 4.17%)" in titles
    assert done.stderr == ""


# ---- Chrome trace events -----------------------------------------------------------------------------


def read_slices(profile: Profile) -> list[tuple[str, float, float]]:
    events = json.loads(export("chrome", profile))["traceEvents"]
    return [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]


def test_a_slice_lasts_while_its_frame_stays_at_its_depth() -> None:
    recording = FakeRecording().see("a|b|c", 10).see("a|b|d", 20).see("a|b|d", 30).see("a|e", 40)
    assert read_slices(recording.profile()) == [
        ("a", 0, 40000), ("b", 0, 30000), ("c", 0, 10000), ("d", 10000, 20000), ("e", 30000, 10000),
    ]  # fmt: skip


def test_a_caller_that_changes_ends_what_it_called() -> None:
    recording = FakeRecording().see("a|b|c", 10).see("a|x|c", 20)
    assert [piece for piece in read_slices(recording.profile()) if piece[0] == "c"] == [
        ("c", 0, 10000), ("c", 10000, 10000),
    ]  # fmt: skip


def test_a_pause_between_samples_ends_every_slice() -> None:
    recording = FakeRecording().see("a", 10).see("a", 20).see("a", 1000)
    assert read_slices(recording.profile()) == [("a", 0, 20000), ("a", 990000, 10000)]


def test_slices_are_exact_to_the_nanosecond() -> None:
    recording = FakeRecording().see("a", 10, wall=1.000001).see("b", 12.345678, wall=2.345678)
    text = export("chrome", recording.profile()).decode()
    assert '"ts":0.000,"dur":1000.001,' in text and '"ts":1000.001,"dur":2345.678,' in text


def test_slices_nest_and_the_outermost_add_up_to_the_time_sampled() -> None:
    profile = record_training().profile()
    events = json.loads(export("chrome", profile))["traceEvents"]
    total, waiting = 0.0, {}
    for event in (event for event in events if event["ph"] == "X"):
        pile = waiting.setdefault((event["pid"], event["tid"]), [])
        while pile and pile[-1] <= event["ts"]:
            pile.pop()
        assert not pile or event["ts"] + event["dur"] <= pile[-1]
        total += 0 if pile else event["dur"]
        pile.append(event["ts"] + event["dur"])
    assert total * 1000 == WALL


def test_processes_and_threads_have_their_names() -> None:
    events = json.loads(export("chrome", record_training().profile()))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["MainThread", "MainThread", "loader;0", "loader;0"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(processes.values()) == [
        "train.py (rank 0, alpha pid 100)", "train.py (rank 1, beta pid 100)",
    ]  # fmt: skip


def test_overlapping_samples_do_not_make_overlapping_slices() -> None:
    recording = FakeRecording().see("a", 10).see("b", 15).see("b", 25)
    slices = list(chrome.find_slices(recording.profile(), recording.profile().iter_samples()))
    assert [(s.start_ns - START_NS, s.end_ns - START_NS) for s in slices] == [
        (0, 10 * MS), (10 * MS, 25 * MS),
    ]  # fmt: skip


def test_chromes_own_importer_reads_it(tmp_path: Path) -> None:
    check = find_outside("CATAPULT_CHECK", "a script that runs chrome://tracing's importer")
    path = write("chrome", record_training().profile(), tmp_path)
    done = subprocess.run(
        [sys.executable, str(check), str(path)], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    assert said["warnings"] == [] and said["titles"]["matmul"] == 4 and HOSTILE in said["titles"]
    assert ["matmul", 0, 20] in said["slices"]


# ---- pictures ---------------------------------------------------------------------------------------

_PAGE = """
const find = (id) => document.getElementById(id);
await until(() => document.body.dataset.ready);
const press = async (name) => {
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true })); await wait();
};
const details = () => find("details").textContent;
const type = (text) => { find("search").value = text; find("search").dispatchEvent(new Event("input")); };
"""


def test_the_page_shows_totals_and_finds_names(tmp_path: Path) -> None:
    path = write("flamegraph", record_training().profile(), tmp_path)
    said = drive(path, _PAGE + """
        const all = details();
        type("matmul");
        const matmul = find("matched").textContent;
        type("fib");
        const fib = find("matched").textContent;
        type("/^(train|wait) /");
        const regex = find("matched").textContent;
        type("(");
        const bracket = find("matched").textContent;
        type("");
        return { all, matmul, fib, regex, bracket, none: find("matched").textContent };
    """)  # fmt: skip
    assert said == {
        "errors": [], "all": "alltotal 240.0 ms (100.00 %) · self 0 µs (0.00 %)",
        "matmul": "matched 25.00 %", "fib": "matched 8.33 %", "regex": "matched 83.33 %",
        "bracket": "matched 8.33 %", "none": "",
    }  # fmt: skip


def test_the_page_zooms_by_click_and_by_key_and_comes_back(tmp_path: Path) -> None:
    path = write("flamegraph", record_training().profile(), tmp_path)
    said = drive(path, _PAGE + """
        const canvas = find("canvas"), box = canvas.getBoundingClientRect();
        const click = async (x, row) => {
            const at = { clientX: box.left + x, clientY: box.top + 4 + row * 20 + 5, bubbles: true };
            canvas.dispatchEvent(new MouseEvent("click", at)); await wait(); await wait();
        };
        await click(20, 2);
        const clicked = details(), canReset = !find("reset").disabled;
        find("reset").click(); await wait();
        const back = details(), cannotReset = find("reset").disabled;
        for (const name of ["ArrowDown", "ArrowDown", "ArrowRight"]) await press(name);
        const moved = details();
        await press("Enter");
        const zoomed = details();
        await press("Escape"); await press("0");
        return { clicked, canReset, back, cannotReset, moved, zoomed };
    """)  # fmt: skip
    assert said["errors"] == []
    assert said["clicked"].startswith(
        "train/job/train.py:20total 80.0 ms (33.33 %, 100.00 % of the view)"
    )
    assert said["canReset"] and said["cannotReset"] and said["back"].startswith("alltotal 240.0 ms")
    assert said["moved"].startswith("fib/job/train.py:20total 20.0 ms (8.33 %)")
    assert "100.00 % of the view" in said["zoomed"]


def test_the_page_switches_weight_thread_and_direction(tmp_path: Path) -> None:
    path = write("flamegraph", record_training().profile(), tmp_path)
    said = drive(path, _PAGE + """
        await press("c"); const cpu = details();
        await press("g"); const gil = details();
        await press("w");
        const names = [...find("thread").options].map((option) => option.textContent);
        find("thread").value = "t1"; find("thread").dispatchEvent(new Event("change"));
        await press("ArrowDown"); const thread = details();
        find("thread").value = "all"; find("thread").dispatchEvent(new Event("change"));
        await press("i"); await press("ArrowDown"); await press("ArrowRight");
        const inverted = details();
        await press("ArrowDown"); const caller = details();
        return { cpu, gil, names, thread, inverted, caller };
    """)  # fmt: skip
    assert said["errors"] == []
    assert said["cpu"].startswith("alltotal 84.0 ms") and said["gil"].startswith("alltotal 60.0 ms")
    assert said["names"] == [
        "all 4",
        "all of train.py (rank 0, alpha pid 100)", "MainThread (100)", "loader;0 (101)",
        "all of train.py (rank 1, beta pid 100)", "MainThread (100)", "loader;0 (101)",
    ]  # fmt: skip
    assert said["thread"].startswith("run/job/train.py:10total 60.0 ms (100.00 %)")
    # Innermost first: what matmul took, whoever called it; below it, its callers.
    assert said["inverted"].startswith("matmul/job/train.py:40total 60.0 ms (25.00 %)")
    assert said["caller"].startswith("forward/job/train.py:30total 40.0 ms (16.67 %)")


def test_a_hostile_name_is_text_on_the_page_and_in_the_picture(tmp_path: Path) -> None:
    recording = FakeRecording().name(100, HOSTILE).see(f"{HOSTILE}|]]>{HOSTILE}|@DATA@ @BOXES@", 10)
    recording.sessions[0].meta = {"argv": ["python", f"{HOSTILE} @SCRIPT@"]}
    for name in ("flamegraph", "svg"):
        path = write(name, recording.profile(), tmp_path)
        ready = "await until(() => document.body.dataset.ready);" if name == "flamegraph" else ""
        said = drive(path, ready + """await wait();
            return { images: document.images.length, scripts: document.querySelectorAll("script").length }""")  # fmt: skip
        assert said["errors"] == [] and said["images"] == 0
        assert said["scripts"] == (3 if name == "flamegraph" else 2)  # ours, and the test's


def test_the_page_asks_the_network_for_nothing() -> None:
    page = export("flamegraph", record_training().profile()).decode()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|src=|@import|url\(", page)


def make_stacks(count: int) -> list[Stack]:
    """Distinct stacks as a large program has them: a few dozen deep, most of them much alike."""
    chance = random.Random(1)
    frames = [Frame(f"function_{at}", f"/lib/module_{at // 20}.py", at, at) for at in range(2000)]
    thread = Thread(Process("s", "alpha", 1, None, "train.py"), 1, "MainThread")
    found: dict[tuple[Frame, ...], Stack] = {}
    path = frames[:20]
    while len(found) < count:
        keep = max(15, len(path) - chance.randint(0, 6))
        near = [(path[keep - 1].lineno * 7 + chance.randint(1, 5)) % 2000]
        for _ in range(chance.randint(0, 5)):
            near.append((near[-1] * 7 + chance.randint(1, 5)) % 2000)
        path = [*path[:keep], *(frames[at] for at in near)][:45]
        wall = chance.randint(1, 400) * 10_012_345
        ns = (wall, wall // 3, chance.choice((0, wall)))
        found[tuple(path)] = Stack(thread, tuple(path), (1, 1, 1), ns)
    return list(found.values())


def test_fifty_thousand_stacks_fit_a_page_of_a_few_hundred_kilobytes(tmp_path: Path) -> None:
    profile = FakeRecording().see("a", 10).profile()
    profile.__dict__["stacks"] = make_stacks(50_000)
    path = write("flamegraph", profile, tmp_path)
    assert path.stat().st_size < 900_000
    total_us = sum(round(stack.ns[0] / 1000) for stack in profile.stacks)
    said = drive(path, _PAGE + "return { all: details() };")
    assert said["errors"] == []
    minutes, us = divmod(total_us, 60_000_000)
    assert said["all"].startswith(f"alltotal {minutes} min {us / 1e6:.1f} s (100.00 %)")


def test_the_picture_is_xml_whose_widths_are_the_shares() -> None:
    root = ElementTree.fromstring(export("svg", record_training().profile()))
    boxes = {}
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        if group.get("class") == "f":
            title, rect, _ = group
            boxes.setdefault(title.text.partition(" (")[0], []).append(float(rect.get("width")))
    assert boxes["all\n240.00 ms, 100.00 %; itself 0 ns"] == [1180.0]
    assert sum(boxes["matmul"]) == pytest.approx(1180 * 60 / 240, abs=0.1)
    assert sum(boxes["wait"]) == pytest.approx(1180 / 2, abs=0.1)


def test_the_picture_searches_and_zooms(tmp_path: Path) -> None:
    path = write("svg", record_training().profile(), tmp_path)
    said = drive(path, """
        const find = (id) => document.getElementById(id);
        const boxes = [...document.querySelectorAll(".f")];
        const shown = () => boxes.filter((g) => !g.classList.contains("hide")).length;
        const of = (name) => boxes.find((g) => g.textContent.startsWith(name + " ("));
        window.prompt = () => "matmul|train ";
        find("search").dispatchEvent(new MouseEvent("click"));
        const matched = find("matched").textContent;
        find("search").dispatchEvent(new MouseEvent("click"));
        const before = shown();
        of("train").dispatchEvent(new MouseEvent("click"));
        const zoomed = shown(), width = of("train").querySelector("rect").getAttribute("width");
        find("reset").dispatchEvent(new MouseEvent("click"));
        return { matched, cleared: find("matched").textContent, before, zoomed, width, after: shown() };
    """)  # fmt: skip
    assert said["errors"] == []
    assert said["matched"] == "matched 33.33 %" and said["cleared"].strip() == ""
    assert said["width"] == "1180.00" and said["zoomed"] < said["before"] == said["after"]


# ---- the command ------------------------------------------------------------------------------------

_JOB = """
import threading, sonde

def spin(end):
    total = 0
    while not end.is_set():
        for number in range(1000):
            total += number * number

def wait_for_work(end):
    end.wait()

sonde.start(collector="off", stack_every="2ms")
end = threading.Event()
threading.Thread(target=wait_for_work, args=(end,), name="waiter", daemon=True).start()
print("ready")
spin(end)
"""


@pytest.fixture
def pid(start) -> int:
    """A program that is being sampled, and has been for a while."""
    process = start(_JOB)
    seen = "SELECT COUNT(DISTINCT thread) > 1 AND SUM(samples) > 100 AS ok FROM python.stack_sample"
    wait_for(lambda: sonde.open(process.pid).query(seen)["ok"][0].as_py())
    return process.pid


@pytest.mark.parametrize("name", NAMES)
def test_a_live_program_is_exported_under_its_sessions_name(name, pid, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "export", str(pid), "--to", name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    session = sonde.open(pid).sessions[0].id
    path = tmp_path / f"{session}{load(name).SUFFIX}"
    assert path.stat().st_size > 100
    assert [entry.name for entry in tmp_path.glob("*.tmp")] == []


def test_what_is_exported_is_what_the_table_holds(pid: int, tmp_path: Path, sonde_cli) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sonde.open(pid).sessions[0].find_state() == "killed")
    sums = sonde.open(pid).query(
        "SELECT SUM(wall_ns)::BIGINT AS wall, SUM(cpu_ns)::BIGINT AS cpu, SUM(samples)::BIGINT AS n,"
        " SUM(wall_ns) FILTER (gil)::BIGINT AS gil FROM python.stack_sample"
    ).to_pylist()[0]  # fmt: skip
    folded = sonde_cli("export", pid, "--to", "collapsed", "-o", "-").stdout.splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in folded) == sums["wall"]
    document = json.loads(sonde_cli("export", pid, "--to", "speedscope", "--cpu", "-o", "-").stdout)
    assert sum(sum(part["weights"]) for part in document["profiles"]) == sums["cpu"]
    path = tmp_path / "out.pb.gz"
    sonde_cli("export", pid, "--to", "pprof", "-o", path)
    values = [sample.value for sample in decode_pprof(path.read_bytes()).sample]
    assert [sum(column) for column in zip(*values, strict=True)] == [
        sums["n"], sums["wall"], sums["cpu"], sums["gil"],
    ]  # fmt: skip
    path = tmp_path / "out.pstats"
    sonde_cli("export", pid, "--to", "pstats", "--gil", "-o", path)
    assert pstats.Stats(str(path)).total_tt == pytest.approx(sums["gil"] / 1e9)


def test_threads_time_and_lines_are_chosen_on_the_command_line(pid: int, sonde_cli) -> None:
    def ask(*words: str) -> list[str]:
        done = sonde_cli("export", pid, "--to", "collapsed", "-o", "-", *words)
        assert done.returncode == 0, done.stderr
        return [line.rpartition(" ")[0] for line in done.stdout.splitlines()]

    assert all(line.startswith("waiter (") for line in ask("--thread", "wait*"))
    assert any("wait_for_work" in line for line in ask("--thread", "waiter"))
    functions = ask("--thread", "MainThread", "--cpu")
    assert len(ask("--thread", "MainThread", "--cpu", "--lines")) > len(functions)
    assert ask("--since", "+0s", "--until", "0s")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--to", "collapsed", "--since", "soon"), 2, "'soon' is not a time"),
        (("--to", "collapsed", "--thread", "nobody"), 1, "threads here: MainThread, waiter"),
        (("--to", "papyrus"), 2, "invalid choice: 'papyrus'"),
        (("--to", "svg", "-o", "/nowhere/x.svg"), 1, "/nowhere/x.svg: No such file"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_no_file(
    words, code, said, pid, tmp_path, monkeypatch, sonde_cli
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = sonde_cli("export", pid, *words)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    from sonde.cli import export as command

    class Broken:
        TEXT = True

        @staticmethod
        def write(_profile, file) -> None:
            file.write("half")
            raise Error("enough")

    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(Error, match="enough"):
        command.write_file(str(path), Broken, None)
    assert path.read_text() == "old" and list(tmp_path.glob(".*")) == []


def test_a_pipe_is_written_and_not_replaced(pid: int, tmp_path: Path, sonde_cli) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        done = sonde_cli("export", pid, "--to", "collapsed", "-o", pipe)
        assert done.returncode == 0 and "spin" in reader.communicate(timeout=60)[0]
    assert pipe.is_fifo()


def test_on_a_terminal_it_says_what_was_written_and_how_to_open_it(pid: int, tmp_path) -> None:
    ours, theirs = pty.openpty()
    path = tmp_path / "out.pstats"
    command = [sys.executable, "-m", "sonde", "export", str(pid), "--to", "pstats", "-o", str(path)]
    process = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    assert process.wait(60) == 0
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert f"wrote {path}" in said and f"snakeviz {path}" in said


def test_bytes_are_not_for_a_terminal(pid: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sonde", "export", str(pid), "--to", "pprof", "-o", "-"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1 and "not for a terminal" in done.stderr
