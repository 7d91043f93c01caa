"""The libraries that people train with, as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.analysis.modules import LAST, ModuleReport, StepSelection, arrange, read_report
from sonde.analysis.window import find_window
from sonde.session import list_sessions
from sonde.store.recording import Recording
from support.needs import need

need("torch")

START = "import sonde; sonde.start(**{'collector': 'off', 'torch.budget_pct': '0'})\n"
PARTS = ("input_wait", "host_to_device", "forward", "backward", "optimizer", "other")


def open_recording() -> Recording:
    return Recording(list_sessions(os.environ["SONDE_DIR"]))


def read(evaluation: bool = False) -> ModuleReport:
    recording = open_recording()
    window = find_window(recording, None, None, last=LAST)
    return read_report(recording, StepSelection(window, evaluation=evaluation))


def assert_adds_up(report: ModuleReport) -> None:
    """The parts of a step are the step, and the tree is not more than its parts."""
    for steps in report.steps:
        whole = sum(getattr(steps, part) for part in PARTS)
        assert whole == pytest.approx(steps.duration, rel=0.02)
        inside = steps.forward + steps.backward + steps.optimizer
        assert sum(node.total_s for node in report.nodes if node.up is None) <= 1.02 * inside


def assert_names(sonde_cli, *names: str) -> None:
    """Assert that the tree names the function of the program, and the line where it is."""
    shown = sonde_cli("tree", "program.py", "--limit", "0").stdout.splitlines()
    for name in names:
        assert any(name in line and "program.py:" in line for line in shown), "\n".join(shown)


TRANSFORMERS = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(1)
config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
model = LlamaForCausalLM(config).train()
if sys.argv[1] == "checkpoint": model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.zeros(2, 8, dtype=torch.long)
def tokenize(): time.sleep(0.03)
ends = []
for _ in range(5):
    tokenize()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step(); optimizer.zero_grad(); ends.append(time.perf_counter())
took = ends[-1] - ends[0]
if sys.argv[1] == "compile":
    model.eval()
    run = torch.compile(lambda x: model.model.layers[0].mlp(x), backend="eager", fullgraph=True)
    block = torch.compile(model.model, backend="eager", fullgraph=True)
    with torch.no_grad(): run(torch.ones(1, 2, 16)); block(input_ids=ids, use_cache=False)
print(json.dumps(took))
"""


@pytest.mark.parametrize("way", ["compile", "checkpoint"])
def test_blocks_of_transformers_are_seen_and_folded(
    run_frameworks, root, sonde_cli, way: str
) -> None:
    pytest.importorskip("transformers", minversion="5")
    done = run_frameworks(START + TRANSFORMERS, way)
    report = read()
    assert_adds_up(report)
    (steps,) = report.steps
    by_clock = json.loads(done.stdout.splitlines()[-1])
    assert steps.count * steps.duration == pytest.approx(by_clock, rel=0.25)
    nodes = {node.label: node for node in arrange(report, folds=True)}
    block = nodes["model.layers.*"] if "model.layers.*" in nodes else nodes["layers.*"]
    assert block.times == 3 and {"mlp", "self_attn"} <= {node.label for node in block.children}
    assert block.total["backward"] > 0
    assert ("recompute" in block.total) == (way == "checkpoint")
    assert_names(sonde_cli, "tokenize")


LIGHTNING = """
import json, logging, sys, time, warnings
warnings.simplefilter("ignore")
import torch
import lightning.pytorch as pl
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
ends = []
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.automatic_optimization = sys.argv[1] != "manual"
    def forward(self, x): return self.layer(x)
    def training_step(self, batch, index):
        time.sleep(0.005)
        loss = self(batch).square().mean()
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad(); self.manual_backward(loss, retain_graph=True); optimizer.step()
        return loss
    def validation_step(self, batch, index): time.sleep(0.002); self(batch)
    def on_train_batch_end(self, *_): ends.append(time.perf_counter())
    def configure_optimizers(self):
        one = torch.optim.SGD(self.parameters(), lr=0.1)
        return [one, torch.optim.Adam(self.parameters())] if sys.argv[1] == "manual" else one
data = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
pl.Trainer(
    max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
    limit_val_batches=3, accumulate_grad_batches=2 if sys.argv[1] == "accumulate" else 1,
).fit(Model(), data, data)
"""


@pytest.mark.parametrize("way", ["automatic", "accumulate", "manual"])
def test_lightning_counts_each_moment_once(run_frameworks, root, sonde_cli, way: str) -> None:
    pytest.importorskip("lightning.pytorch")
    run_frameworks(START + LIGHTNING, way)
    training, evaluation = read(), read(evaluation=True)
    assert_adds_up(training)
    assert_adds_up(evaluation)
    (steps,), (others,) = training.steps, evaluation.steps
    assert steps.training and not others.training
    assert others.count >= 3 and others.backward == others.optimizer == 0
    # What `training_step` does outside of modules is not the optimizer's.
    outside = steps.other + steps.host_to_device
    assert outside >= 0.004 and steps.optimizer < outside
    assert_names(sonde_cli, "Model.training_step", "time.sleep")


ACCELERATE = """
import time
import torch
from accelerate import Accelerator
from sonde.integrations.accelerate import SondeTracker
accelerator = Accelerator(cpu=True, log_with=SondeTracker())
accelerator.init_trackers("p")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
def read_shard(): time.sleep(0.05)
for batch in data:
    read_shard()
    accelerator.backward(model(batch).square().mean()); optimizer.step(); optimizer.zero_grad()
    accelerator.log({"loss": 1.5})
model.eval()
with torch.no_grad():
    for batch in data: model(batch)
accelerator.end_training()
"""


def test_accelerate_records_without_a_configuration(run_frameworks, root, sonde_cli) -> None:
    pytest.importorskip("accelerate")
    run_frameworks(ACCELERATE, SONDE_COLLECTOR="off")
    recording = open_recording()
    tags = recording.query("SELECT name FROM job.loop_tag").to_pylist()
    assert [tag["name"] for tag in tags] == ["library"]
    assert len(recording.query("SELECT * FROM job.loop_metric")) == 4
    kinds = recording.query("SELECT training FROM python.torch_step ORDER BY step").to_pylist()
    assert [row["training"] for row in kinds] == [True] * 4 + [False] * 4
    assert_names(sonde_cli, "read_shard")


RANKS = """
import os, time, torch
from accelerate import Accelerator
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.ones(960, 64), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
def read_shard(): time.sleep(0.05)
for batch in data:
    if accelerator.process_index == 1: read_shard()
    accelerator.backward(model(batch).square().mean()); optimizer.step(); optimizer.zero_grad()
# One call for a line: two ranks share the pipe.
os.write(1, f"done {accelerator.process_index} {accelerator.num_processes}\\n".encode())
accelerator.end_training()
"""


def test_accelerate_with_two_processes_is_one_job_that_names_the_slow_rank(
    tmp_path: Path, root, sonde_cli
) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(RANKS)
    launch = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "train.py")
    done = subprocess.run(
        [sys.executable, "-m", *launch], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=240, env={**os.environ, "SONDE": "1", "SONDE_COLLECTOR": "off",
                          "ACCELERATE_USE_CPU": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"done 0 2", "done 1 2"} <= set(done.stdout.splitlines()), done.stdout
    rows = json.loads(sonde_cli("ps", "--format", "json").stdout)
    ranks = {row["rank"]: row for row in rows if row["rank"] is not None}
    assert set(ranks) == {0, 1} and len({row["job"] for row in rows}) == 1
    job = rows[0]["job"]
    tree = sonde_cli("tree", job).stdout.splitlines()
    assert any("read_shard" in line and "train.py:10" in line for line in tree), "\n".join(tree)
    top = sonde_cli("top", job, "--once").stdout.partition("the sum of")[0].splitlines()
    slow = next(line for line in top if f" {ranks[1]['pid']} " in line)
    assert slow.split()[0] == "1" and "read_shard" in slow and "train.py:10" in slow, top
    advice = sonde_cli("advise", job).stdout
    assert "read_shard" in advice and "train.py:10" in advice, advice
