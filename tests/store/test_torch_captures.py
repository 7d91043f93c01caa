"""The tables of captures, from traces whose numbers are known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sonde
from sonde import _core
from sonde.errors import Damaged
from sonde.job.recorder import recorder
from sonde.tables.torch import TorchTrace
from support.torch_traces import ENGINE, ID, MAIN, store
from support.trace_viewer import view


@pytest.fixture
def recorded() -> tuple[str, int]:
    """A recording with calls of modules, and a capture over two steps: its folder and begin."""
    folder = sonde.start(collector=False)
    assert folder is not None
    begin_ns = _core.clock_ns()
    emit = recorder.open_table(TorchTrace, "python.torch_trace")
    for module, depth, at_us, dur_us in (
        ("Net", 0, 90, 300), ("Net.fc", 1, 99, 205), ("Net", 0, 1190, 100), ("other", 0, 100, 1),
    ):  # fmt: skip
        thread = 999 if module == "other" else MAIN
        emit(
            5, 0, module, "forward", None, None, None, dur_us / 1e6, begin_ns + at_us * 1000, None,
            dur_us / 1e6, None, thread, depth, 0, False, False, None,
        )  # fmt: skip
    store(folder, begin_ns)
    return folder, begin_ns


def query(folder: str, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in sonde.open(folder).query(sql).to_pylist()]


def test_operators_have_times_modules_and_steps(recorded) -> None:
    folder, begin_ns = recorded
    found = query(
        folder,
        "SELECT op, kind, thread, t_ns, dur_ns, self_ns, depth, module, step, sequence, backward"
        " FROM python.torch_op ORDER BY t_ns, depth",
    )
    at = {name: [row[2], row[3] - begin_ns, *row[4:]] for name, _kind, *rest in found
          for row in [(name, _kind, *rest)]}  # fmt: skip
    assert at["aten::linear"] == [MAIN, 100_000, 200_000, 50_000, 0, "Net.fc", 5, 10, False]
    assert at["aten::addmm"] == [MAIN, 120_000, 150_000, 120_000, 1, "Net.fc", 5, 10, False]
    # A backward pass has the module of the forward operator that it undoes, and so has what it calls.
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    assert at[name] == [ENGINE, 500_000, 100_000, 50_000, 0, "Net.fc", 5, 10, True]
    assert at["aten::mm"] == [ENGINE, 520_000, 50_000, 50_000, 1, "Net.fc", 5, None, False]
    assert at["cudaMemcpyAsync"][5:7] == ["Net", 6]
    # It was open when the capture ended: it lasted until then.
    assert at["Optimizer.step#SGD.step"] == [
        MAIN, 1_900_000, 100_000, 80_000, 0, None, 6, None, False,
    ]  # fmt: skip
    assert "aten::after" not in at
    assert {row[0]: row[1] for row in found}["cudaLaunchKernel"] == "runtime"


def test_kernels_know_who_launched_them(recorded) -> None:
    folder, begin_ns = recorded
    found = query(
        folder,
        "SELECT kernel, kind, t_ns, dur_ns, device, stream, correlation, op, launch_t_ns,"
        " launch_thread, grid, block, registers, shared_bytes, copied_bytes, module, step"
        " FROM python.torch_kernel ORDER BY t_ns",
    )
    at = {row[0]: row for row in found}
    assert at["gemm<128>"] == (
        "gemm<128>", "kernel", begin_ns + 400_000, 300_500, 0, 7, 77, "aten::addmm",
        begin_ns + 140_000, MAIN, "[8,1,1]", "[128,1,1]", 64, 1024, None, "Net.fc", 5,
    )  # fmt: skip
    copy = at["Memcpy HtoD"]
    assert (
        copy[1] == "memcpy" and copy[5] == 13 and copy[7] is None and copy[14:] == (4096, "Net", 6)
    )
    # What was launched in the capture belongs to it, whenever it ran; what was not does not.
    assert at["late_but_ours"][16] == 6 and "not_ours" not in at


def test_the_capture_itself(recorded) -> None:
    folder, begin_ns = recorded
    (row,) = sonde.open(folder).query("SELECT * FROM python.torch_capture").to_pylist()
    assert (row["capture"], row["state"], row["t_ns"]) == (ID, "done", begin_ns)
    assert (row["first_step"], row["steps"], row["dur_ns"], row["held_ns"]) == (5, 2, 2_000_000, 6)


def test_a_wall_clock_that_is_being_set_right_is_followed(recorded) -> None:
    from sonde.session import captures

    folder, begin_ns = recorded
    about = captures.read_about(folder, ID)
    wall_ns = about.anchors[0][0]
    # In its 2000 us it showed 20 us less than had passed.
    about.anchors = [(wall_ns, begin_ns), (wall_ns + 1_980_000, begin_ns + 2_000_000)]
    captures.write_about(folder, about)
    rows = query(folder, "SELECT t_ns FROM python.torch_op WHERE op = 'cudaMemcpyAsync'")
    assert abs(rows[0][0] - begin_ns - 1_212_121) <= 1


def test_a_damaged_trace_is_one_line_and_the_captures_say_so(recorded, sonde_cli) -> None:
    folder, _ = recorded
    path = next(Path(folder, "captures").glob("*.gz"))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(Damaged, match="truncated or damaged"):
        query(folder, "SELECT * FROM python.torch_op")
    done = sonde_cli("query", folder, "SELECT * FROM python.torch_kernel")
    assert done.returncode == 4 and done.stderr.count("\n") == 1 and str(path) in done.stderr
    ((state, why),) = query(folder, "SELECT state, why FROM python.torch_capture")
    assert state == "damaged" and path.name in why
    # Whoever does not ask for it is not bothered.
    assert query(folder, "SELECT COUNT(*) FROM python.torch_trace") == [(4,)]


def test_a_trace_that_somebody_removed_is_one_line(recorded) -> None:
    folder, _ = recorded
    next(Path(folder, "captures").glob("*.gz")).unlink()
    with pytest.raises(Damaged, match="is missing"):
        query(folder, "SELECT * FROM python.torch_op")


def test_what_is_known_of_a_capture_may_be_damaged(recorded) -> None:
    folder, _ = recorded
    path = next(Path(folder, "captures").glob("*.about.json"))
    path.write_text(path.read_text().replace("done", "gone"))
    assert query(folder, "SELECT state FROM python.torch_capture") == [("damaged",)]
    assert query(folder, "SELECT COUNT(*) FROM python.torch_op") == [(0,)]


def test_an_ended_recording_still_has_its_captures(recorded) -> None:
    folder, _ = recorded
    sonde.stop()
    assert query(folder, "SELECT COUNT(*) FROM python.torch_op WHERE module = 'Net.fc'") == [(5,)]


# ---- the timeline ----------------------------------------------------------------------------------


def export(folder: str, path: Path, sonde_cli) -> list[dict[str, object]]:
    done = sonde_cli("export", folder, "--to", "chrome", "-o", path)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())["traceEvents"]


@pytest.fixture
def sampled(recorded) -> tuple[str, int]:
    from conftest import wait_for

    folder, _ = recorded
    wait_for(lambda: query(folder, "SELECT COUNT(*) FROM python.stack_sample")[0][0] > 2)
    return recorded


def test_samples_modules_operators_and_kernels_are_in_one_file(
    sampled, sonde_cli, tmp_path: Path
) -> None:
    events = export(sampled[0], tmp_path / "x.json", sonde_cli)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"GPU 0 stream 7", "GPU 0 stream 13"} <= set(names.values())
    slices = {e["name"]: e for e in events if e["ph"] == "X"}
    gemm, linear, module = slices["gemm<128>"], slices["aten::linear"], slices["Net.fc"]
    lanes = [names[one["tid"]] for one in (gemm, linear, module)]
    assert lanes[0] == "GPU 0 stream 7"
    # The thread has no name, but a number.
    assert re.fullmatch(r"thread \d+: operators", lanes[1])
    assert lanes[2] == lanes[1].replace("operators", "modules")
    # One clock: what is 300 us apart there is so here.
    assert gemm["ts"] - linear["ts"] == pytest.approx(300, abs=0.002)
    assert linear["ts"] - module["ts"] == pytest.approx(1, abs=0.002)
    assert gemm["args"]["op"] == "aten::addmm" and linear["args"]["module"] == "Net.fc"


def test_flows_lead_from_the_launch_to_the_kernel(sampled, sonde_cli, tmp_path: Path) -> None:
    events = export(sampled[0], tmp_path / "x.json", sonde_cli)
    flows: dict[object, dict[str, dict[str, object]]] = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            flows.setdefault(event["id"], {})[event["ph"]] = event
    ends = {(e["tid"], e["ts"]): e["name"] for e in events if e["ph"] == "X"}
    found = {
        ends[one["f"]["tid"], one["f"]["ts"]]: ends[one["s"]["tid"], one["s"]["ts"]]
        for one in flows.values()
    }
    assert found == {
        "gemm<128>": "cudaLaunchKernel", "Memcpy HtoD": "cudaMemcpyAsync",
        "late_but_ours": "cudaLaunchKernel",
    }  # fmt: skip


def test_chromes_own_importer_reads_the_merged_file(sampled, sonde_cli, tmp_path: Path) -> None:
    export(sampled[0], tmp_path / "x.json", sonde_cli)
    (said,) = view(tmp_path / "x.json")
    assert said["warnings"] == []
    assert {"gemm<128>", "aten::linear", "Net.fc"} <= {one["title"] for one in said["slices"]}
    assert said["flows"]
