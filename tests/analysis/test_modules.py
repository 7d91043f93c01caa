"""`sonde modules`: the tree of modules, its numbers, and how it is shown."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.analysis.module_tree import ModuleNode, flatten, fold
from sonde.analysis.modules import LAST, ModuleReport, StepSelection, read_report
from sonde.analysis.window import find_window
from sonde.errors import ConfigError, Error
from sonde.job.recorder import recorder
from sonde.store.recording import Recording, open_recording
from sonde.tables.overhead import Overhead
from support.handmade_model import Job, Part, make_gpt
from support.needs import need
from support.places import TESTS

_OFF = dict(collector="off", source_stack="off", source_torch="off", source_gc="off")
SECOND = 10**9
BLOCKS = "blocks.* (3\N{MULTIPLICATION SIGN})"


@pytest.fixture
def job(root: Path) -> Job:
    assert sonde.start(**_OFF)
    return Job(_core.clock_ns())


def read(
    first: int | None = None, last: int | None = None, target: object = None,
    evaluation: bool = False,
) -> ModuleReport:  # fmt: skip
    recording = open_recording(os.getpid() if target is None else target)
    window = find_window(recording, None, None, now_ns=_far(recording), last=LAST)
    return read_report(recording, StepSelection(window, first, last, evaluation))


def _far(recording: Recording) -> int:
    """A wall clock after all steps that were made by hand, which lie in the future."""
    return recording.sessions[0].start_wall_ns + 3600 * SECOND


def by_label(nodes: list[ModuleNode]) -> dict[str, ModuleNode]:
    found = {node.label: node for node in nodes}
    assert len(found) == len(nodes)
    return found


def assert_adds_up(nodes: list[ModuleNode]) -> None:
    assert nodes
    for node in nodes:
        inside = sum(child.total_s for child in node.children)
        assert node.total_s == pytest.approx(inside + node.own_s)
        for stage, seconds in node.total.items():
            own = node.own.get(stage, 0.0)
            assert seconds == pytest.approx(
                own + sum(child.total.get(stage, 0.0) for child in node.children)
            )


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


# ---- the numbers ---------------------------------------------------------------------------------


def test_a_module_and_what_it_calls_make_up_its_caller(job: Job) -> None:
    for number in range(4):
        job.step(number, make_gpt())
    report = read()
    assert_adds_up(report.nodes)
    gpt = report.nodes[0]
    assert (gpt.label, gpt.type, gpt.up) == ("GPT", "GPT", None)
    assert ms(gpt.total["forward"]) == 0.5 + 1 + 3 * (1 + 2 + 3)
    assert ms(gpt.total["backward"]) == 0.25 + 2 + 3 * (1 + 4 + 6)
    assert ms(gpt.own_s) == 0.75
    assert [node.label for node in report.nodes[:4]] == ["GPT", "emb", "blocks.0", "attn"]


def test_modules_show_themselves_in_notebooks_as_a_tree_and_are_rows(job: Job) -> None:
    for number in range(4):
        job.step(number, make_gpt())
    wait_for(lambda: _core.clock_ns() > job.now_ns)  # what was made by hand lies in the future
    report = sonde.modules(os.getpid())
    shown = report._repr_html_()
    names = re.findall(r'padding-left:([\d.]+)em"><bdi>([^<]*)</bdi>', shown)
    assert names[:3] == [("0.5", "GPT"), ("1.7", "emb"), ("1.7", BLOCKS)]
    assert "a step (mean of 3), by module" in shown and ".table()" in repr(report)
    rows = report.table().to_pylist()
    assert [row["module"] for row in rows][:2] == ["GPT", "GPT.emb"]
    assert rows[0]["forward_ns"] == 19_500_000


def test_a_step_is_its_parts(job: Job) -> None:
    for number in range(4):
        job.step(number, make_gpt())
    report = read()
    (steps,) = report.steps
    parts = (steps.input_wait, steps.forward, steps.backward, steps.optimizer, steps.other)
    assert sum(parts) == pytest.approx(steps.duration) == pytest.approx(report.step_s)
    roots = sum(node.total_s for node in report.nodes if node.up is None)
    assert roots == pytest.approx(steps.forward + steps.backward + steps.optimizer)


def test_steps_of_training_and_of_evaluation_are_not_mixed(job: Job) -> None:
    model = Part("Net", forward_ms=4, backward_ms=8)
    for number in range(6):
        job.step(number, model)
    for number in range(6, 9):
        job.step(number, model, backward=False, optimizer_ms=0, training=False)
    (trained,), (evaluated,) = read().steps, read(evaluation=True).steps
    assert (trained.count, trained.training, trained.other_kind) == (5, True, 3)
    assert (evaluated.count, evaluated.training, evaluated.other_kind) == (3, False, 5)
    assert trained.backward == pytest.approx(0.008) and evaluated.backward == 0


def test_a_job_that_only_evaluates_has_its_modules(job: Job) -> None:
    for number in range(3):
        job.step(number, Part("Net"), backward=False, optimizer_ms=0, training=False)
    (steps,) = read().steps
    assert (steps.count, steps.training, steps.other_kind) == (2, False, 0)


def test_the_first_step_is_left_out_unless_it_is_asked_for(job: Job) -> None:
    job.step(0, make_gpt(slower=100))
    job.step(1, make_gpt())
    assert (read().steps[0].first, read().steps[0].count) == (1, 1)
    assert (read(0).steps[0].first, read(0).steps[0].count) == (0, 2)
    assert read(0, 0).steps[0].last == 0


def test_one_step_so_far_is_said_to_warm_up(job: Job) -> None:
    job.step(0, make_gpt())
    with pytest.raises(Error, match=r"only the first step is recorded so far.*`--steps 0-`"):
        read()


def test_unrecorded_steps_are_in_no_share(job: Job) -> None:
    for number in range(6):
        # An unrecorded step is slow here: in a mean it would show.
        job.step(number, make_gpt(), unrecorded=number == 3, other_ms=500 if number == 3 else 1)
    report = read()
    assert report.steps[0].count == 4
    assert ms(report.nodes[0].total["forward"]) == 19.5
    assert ms(report.step_s) == ms(report.nodes[0].total_s) + 2 + 1 + 0.5


def test_a_step_that_lost_its_first_rows_is_left_out(job: Job) -> None:
    for number in range(4):
        job.step(number, make_gpt(), first_seq=5 if number == 1 else 0)
    report = read()
    assert report.steps[0].count == 2 and ms(report.nodes[0].total["forward"]) == 19.5


def test_steps_that_were_recorded_less_deep_are_left_out_and_counted(job: Job) -> None:
    for number in range(6):
        gpt = make_gpt()
        if number > 3:
            gpt = Part("GPT", "GPT", gpt.sum("forward_ms"), gpt.sum("backward_ms"))
        job.step(number, gpt)
    job.step(6, Part("Critic", "Critic"))  # another model, which has no more depth
    (steps,) = read().steps
    assert (steps.count, steps.shallow, steps.last) == (4, 2, 6)
    (gpt,) = [node for node in read().nodes if node.label == "GPT"]
    assert ms(gpt.own["forward"]) == 0.5 * 3 / 4
    assert (read(4, 5).steps[0].count, read(4, 5).steps[0].shallow) == (2, 0)


def test_steps_whose_backward_is_not_known_are_left_out_of_its_mean(job: Job) -> None:
    for number in range(8):
        job.step(number, make_gpt(), known=number in (1, 5))
    report = read()
    (steps,) = report.steps
    assert (steps.count, steps.shallow, steps.owned) == (2, 5, 0.9)
    assert_adds_up(report.nodes)
    (gpt,) = [node for node in report.nodes if node.label == "GPT"]
    assert ms(gpt.total["backward"]) == pytest.approx(make_gpt().sum("backward_ms"))


def test_where_backward_is_never_known_all_steps_count(job: Job) -> None:
    for number in range(4):
        job.step(number, make_gpt(), known=False)
    (steps,) = read().steps
    assert (steps.count, steps.shallow, steps.owned) == (3, 0, None)


def test_a_module_with_two_callers_is_in_both(job: Job) -> None:
    shared = Part("Model.shared", "Linear", 5, 10, [Part("Model.shared.act", "ReLU", 1, 1)])
    model = Part("Model", "Model", 1, 1, [
        Part("Model.a", "A", 1, 1, [shared]), Part("Model.b", "B", 2, 2, [shared, shared]),
    ])  # fmt: skip
    for number in range(3):
        job.step(number, model)
    report = read()
    assert_adds_up(report.nodes)
    a, b = (next(node for node in report.nodes if node.label == name) for name in "ab")
    assert (ms(a.total_s), ms(b.total_s)) == (2 + 17, 4 + 34)
    assert [child.label for child in a.children] == ["Model.shared"]
    assert b.children[0].calls == 2 and a.children[0].calls == 1
    assert [child.label for child in b.children[0].children] == ["act"]


def test_a_name_with_dots_is_one_name(job: Job) -> None:
    # setattr(model, "v1.5", Linear()) makes such a part; and a list is a part of names alone.
    model = Part("Net", "Net", 1, 1, [
        Part("Net.v1.5", "Linear", 3, 3), Part("Net.v1", "Block", 1, 1, [Part("Net.v1.6", "Linear", 7, 7)]),
        Part("Network.head", "Linear", 1, 1),
    ])  # fmt: skip
    for number in range(2):
        job.step(number, model)
    report = read()
    assert_adds_up(report.nodes)
    net = report.nodes[0]
    assert [child.label for child in net.children] == ["v1.5", "v1", "Network.head"]
    assert [child.label for child in net.children[1].children] == ["6"]


def test_recomputing_belongs_where_the_module_is(job: Job) -> None:
    block = Part("GPT.blocks.0", "Block", 2, 4, [Part("GPT.blocks.0.fc", "Linear", 1, 2)], 2.0)
    block.inside[0].recompute_ms = 1.0
    for number in range(3):
        job.step(number, Part("GPT", "GPT", 1, 1, [block]))
    report = read()
    assert_adds_up(report.nodes)
    found = by_label([node for node in report.nodes if node.up or node.label == "GPT"])
    assert ms(found["blocks.0"].total["recompute"]) >= 3 and found["blocks.0"].up is found["GPT"]
    assert found["GPT"].total["recompute"] == found["blocks.0"].total["recompute"]


def test_a_module_that_calls_itself_is_a_chain(job: Job) -> None:
    inner = Part("Rec", "Rec", 1, 1)
    for _ in range(40):
        inner = Part("Rec", "Rec", 1, 1, [inner])
    for number in range(2):
        job.step(number, inner)
    report = read()
    assert_adds_up(report.nodes)
    chain = [node for node in report.nodes if node.label == "Rec"]
    assert len(chain) == 41 and chain[-1].depth == 40
    (flat,) = [node for node in flatten(report.nodes, "name") if node.label == "Rec"]
    assert ms(flat.total["forward"]) == 41 == ms(flat.own["forward"])


def test_inference_has_no_backward(job: Job) -> None:
    for number in range(3):
        job.step(number, make_gpt(), backward=False)
    assert "backward" not in read().nodes[0].total


def test_device_time_is_a_mean_of_the_steps_that_have_it(job: Job) -> None:
    for number in range(9):
        timed = ("forward", "", "backward", "")[number % 4]  # as a small budget has it
        job.step(number, Part("Net", "Net", device_ms=8.0, allocated=12.5), timed=timed)
    net = read().nodes[0]
    assert net.device is not None and ms(net.device) == 16  # forward and backward
    assert net.allocated == 12.5


def test_device_time_is_shown_where_there_is_any(job: Job, sonde_cli) -> None:
    inside = [Part("Net.a", device_ms=6.0), Part("Net.b", device_ms=2.0)]
    for number in range(3):
        job.step(number, Part("Net", "Net", 1, 1, inside, device_ms=10.0))
    done = sonde_cli("modules", os.getpid(), "--until", "+1h")
    assert done.returncode == 0, done.stderr
    assert "20.0 ms of the device in modules" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  a ")]
    assert line.split()[-6:] == ["12.0", "ms", "60.0", "%", "1", "100"]


# ---- several as one ------------------------------------------------------------------------------


def test_repeated_blocks_fold_into_one_line_that_adds_up(job: Job) -> None:
    for number in range(3):
        job.step(number, make_gpt(blocks=24))
    report = read()
    folded = fold(report.nodes)
    assert_adds_up(folded)
    assert [node.label for node in folded] == ["GPT", "emb", "blocks.*", "attn", "mlp", "AdamW"]
    blocks = folded[2]
    assert blocks.times == 24 and len(blocks.modules) == 24 and blocks.calls == 24
    assert ms(blocks.total["forward"]) == 24 * 6 and blocks.parameters == 2400
    assert folded[3].times == 1  # one in each block
    assert ms(folded[0].total_s) == ms(report.nodes[0].total_s)


def test_unlike_parts_of_a_sequential_stay_apart(job: Job) -> None:
    kinds = ("Linear", "ReLU", "Linear", "Linear")
    inside = [Part(f"Net.{at}", kind, 1, 1) for at, kind in enumerate(kinds)]
    for number in range(2):
        job.step(number, Part("Net", "Sequential", 1, 1, inside))
    labels = [(node.label, node.type, node.times) for node in fold(read().nodes)[1:4]]
    assert labels == [("0", "Linear", 1), ("1", "ReLU", 1), ("*", "Linear", 2)]


def test_a_list_by_type_has_every_second_once(job: Job) -> None:
    for number in range(3):
        job.step(number, make_gpt())
    report = read()
    flat = by_label(flatten(report.nodes, "type"))
    assert sum(node.own_s for node in flat.values()) == pytest.approx(
        sum(node.total_s for node in report.nodes if node.up is None)
    )
    assert ms(flat["MLP"].own_s) == 3 * 9 and flat["MLP"].calls == 3


# ---- ranks ---------------------------------------------------------------------------------------

RANK = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
import sonde
from sonde import _core
from support.handmade_model import Job, make_gpt
print(sonde.start(**{_OFF!r}))
job = Job(_core.clock_ns())
for number in range(4):
    job.step(number, make_gpt(slower=float(sys.argv[1])))
"""


def test_ranks_are_medians_with_the_slowest_named(run, sonde_cli) -> None:
    folders = [
        run(RANK, str(slower), RANK=str(rank), WORLD_SIZE="3").stdout.strip()
        for rank, slower in enumerate((1, 5, 2))
    ]
    report = read(target=folders)
    assert_adds_up(report.nodes)
    attn = next(node for node in report.nodes if node.label == "attn")
    assert ms(attn.own["forward"]) == 4  # of 2, 10 and 4
    assert [one.rank for one in report.find_extremes(attn)] == [0, 1]
    done = sonde_cli("modules", ",".join(folders))
    assert done.returncode == 0, done.stderr
    assert "the fastest is rank 0: " in done.stdout and ", the slowest rank 1: " in done.stdout
    assert "rank 1: 42.0 ms" in done.stdout
    rows = json.loads(sonde_cli("modules", ",".join(folders), "--format", "json").stdout)
    row = next(row for row in rows if row["module"].endswith("attn"))
    assert (row["fastest_rank"], row["slowest_rank"]) == (0, 1)
    spread = 100 * (row["slowest_ns"] - row["fastest_ns"]) / row["spread_pct"]
    assert row["fastest_ns"] < spread < row["slowest_ns"]  # it is of the mean


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def folder(run) -> str:
    """A recording that has ended."""
    return str(run(RANK, "1").stdout.strip())


def test_the_verdict_comes_first_and_the_tree_below(folder: str, sonde_cli) -> None:
    done = sonde_cli("modules", folder)
    assert done.returncode == 0, done.stderr
    verdict, empty, head, gpt, *rest = done.stdout.splitlines()
    assert verdict.startswith(
        "58.2 ms a step (mean of 3, 1-3; median 58.2 ms): input wait 0.9 %, forw"
    )
    assert "backward 61 %, optimizer 3.4 %, other 1.7 %; 90 % of backward is known" in verdict
    assert empty == "" and head.split()[:4] == ["module", "type", "share", "total"]
    assert gpt.split()[:4] == ["GPT", "GPT", "94.0", "%"]
    assert [line.split("  ")[1] for line in rest if line.startswith("  b")] == [BLOCKS]
    assert "\x1b" not in done.stdout and "█" not in done.stdout


def test_what_recording_costs_is_in_the_verdict(job: Job, sonde_cli) -> None:
    emit = recorder.open_table(Overhead, "sonde.overhead")
    job.step(0, make_gpt())
    job.step(1, make_gpt())

    def emit_row(
        at_ns: int, direct: float, low: float | None = None, high: float | None = None
    ) -> str:
        middle = None if low is None or high is None else (low + high) / 2
        emit(at_ns, 1, "torch", middle, low, high, direct, 1.0, 0, "every step", 20)
        verdict = sonde_cli("modules", os.getpid(), "--until", "+1h").stdout.splitlines()[0]
        (said,) = (part for part in verdict.split("; ") if part.startswith("recording costs "))
        return str(said.removeprefix("recording costs "))

    assert "recording costs" not in sonde_cli("modules", os.getpid(), "--until", "+1h").stdout
    assert emit_row(1, 0.2) == "at least 0.20 %"
    assert emit_row(2, 0.3, 0.7, 0.72) == "0.7 %"
    assert emit_row(3, 0.3, -0.5, 1.5) == "0.3 to 1.5 %"
    assert emit_row(4, 0.01, -0.5, 1.5) == "less than 1.5 %"
    assert emit_row(5, 0.3, 6.0, 14.0) == "6.0 to 14.0 %"
    assert emit_row(6, 0.05, -20.0, 48.0) == "at least 0.05 %"  # the comparison is noise
    assert emit_row(7, 0.3, -2.0, 0.1) == "at least 0.30 %"


def test_json_and_csv_have_every_module_with_exact_numbers(folder: str, sonde_cli) -> None:
    rows = json.loads(sonde_cli("modules", folder, "--format", "json").stdout)
    assert [row["module"] for row in rows[:3]] == ["GPT", "GPT.emb", "GPT.blocks.0"]
    assert len(rows) == 1 + 1 + 3 * 3 + 1
    for row in rows:
        inside = sum(one["total_ns"] for one in rows if one["parent"] == row["module"])
        assert row["total_ns"] == pytest.approx(inside + row["self_ns"])
    lines = sonde_cli("modules", folder, "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("module,parent,type,depth") and len(lines) == len(rows) + 1
    assert not [name for name in rows[0] if name.endswith(("_s", "_ms", "_mb"))]


def test_depth_sort_all_and_flat_say_what_is_shown(folder: str, sonde_cli) -> None:
    def names(*args: str) -> list[str]:
        done = sonde_cli("modules", folder, *args)
        assert done.returncode == 0, done.stderr
        return [line.strip().split("  ")[0] for line in done.stdout.splitlines()[3:]]

    assert names("--depth", "0") == ["GPT", "AdamW"]
    assert names("--depth", "1") == ["GPT", "emb", BLOCKS, "AdamW"]
    assert names("--sort", "total")[:4] == ["GPT", BLOCKS, "mlp", "attn"]
    assert names("--all").count("mlp") == 3
    assert names("--flat", "type")[0] == "MLP"
    assert "GPT.blocks.2.attn" in names("--flat", "name")


def test_what_is_not_there_is_said(folder: str, run, sonde_cli) -> None:
    done = sonde_cli("modules", folder, "--steps", "50-60")
    assert done.returncode == 1 and "steps here: 0-3" in done.stderr
    assert sonde_cli("modules", folder, "--steps", "x").returncode == ConfigError.exit_code
    assert sonde_cli("modules", folder, "--steps", "9-3").returncode == ConfigError.exit_code
    bare = run("import sonde; print(sonde.start(collector='off'))").stdout.strip()
    done = sonde_cli("modules", bare)
    assert done.returncode == Error.exit_code and "no PyTorch step was recorded" in done.stderr


def test_since_counts_from_the_end_of_the_last_step(folder: str, sonde_cli) -> None:
    rows = json.loads(
        sonde_cli("modules", folder, "--since", "60ms", "--format", "json", "--depth", "0").stdout
    )
    assert rows[0]["total_ns"] == pytest.approx(54_750_000)
    done = sonde_cli("modules", folder, "--since", "60ms")
    assert "(mean of 1, 3-3;" in done.stdout


def test_one_step_can_be_exported(folder: str, sonde_cli, tmp_path: Path) -> None:
    done = sonde_cli("modules", folder, "--to", "collapsed", "-o", "-")
    assert done.returncode == 0, done.stderr
    lines = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    ns = int(lines["forward;GPT (GPT:0);blocks.0 (Block:0);mlp (MLP:0)"])
    assert ns == 3_000_000
    page = tmp_path / "step.html"
    assert sonde_cli("modules", folder, "--to", "flamegraph", "-o", page).returncode == 0
    assert page.read_text().startswith("<!")


def test_a_terminal_gets_bars_and_colours(folder: str) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "modules", folder], stdout=slave, env=environment
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait(timeout=240) == 0
    assert "█".encode() in shown and b"\x1b[36m" in shown


# ---- with torch ----------------------------------------------------------------------------------

TRAIN = """
import sonde, sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.fc = nn.Linear(64, 64); self.act = nn.ReLU()
    def forward(self, x): return x + self.act(self.fc(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.blocks = nn.ModuleList(Block() for _ in range(3)); self.tied = nn.Linear(64, 64)
    def forward(self, x):
        x = self.tied(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "checkpoint" in sys.argv else block(x)
        return self.tied(x)
torch.set_num_threads(1)
print(sonde.start(collector="off", source_stack="off"))
model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    model(torch.ones(256, 64)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize("how", ["plain", "checkpoint"])
def test_a_real_model_adds_up(how: str, run_torch) -> None:
    need("torch")
    folder = run_torch(TRAIN, how).stdout.strip()
    report = read(target=folder)
    assert_adds_up(report.nodes)
    (steps,) = report.steps
    sql = "SELECT SUM(duration) / 4 AS s FROM python.torch_trace WHERE stage = 'forward' AND depth = 0 AND step > 0"
    net = report.nodes[0]
    assert net.label == "Net" and steps.count == 4
    assert net.total["forward"] == pytest.approx(open_recording(folder).query(sql)["s"][0].as_py())
    assert [child.label for child in net.children] == ["tied", *(f"blocks.{at}" for at in range(3))]
    assert net.children[0].calls == 2 and net.children[0].total["backward"] > 0
    labels = [node.label for node in fold(report.nodes)]
    assert labels == ["Net", "tied", "blocks.*", "fc", "act", "SGD"]
    recomputed = net.children[1].total.get("recompute", 0.0)
    assert (recomputed > 0) == (how == "checkpoint")
    inside = net.total["backward"] + net.total.get("recompute", 0.0)
    assert inside <= steps.backward
