"""Integrations, with the real libraries where they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.session import list_sessions

STEPS = "SELECT stage, epoch, global_step, step FROM job.loop_step ORDER BY t_ns"
TAGS = "SELECT name, value FROM job.loop_tag"


def ask(root: Path, sql: str) -> list[tuple[object, ...]]:
    (session,) = list_sessions(str(root))
    return [tuple(row.values()) for row in sonde.open(session.folder).query(sql).to_pylist()]


LIGHTNING = """
import sys, warnings, logging
warnings.simplefilter("ignore")
import torch
pl = __import__(sys.argv[1], fromlist=["x"])
logging.getLogger(sys.argv[1]).setLevel(logging.ERROR)
from sonde.integrations.lightning import SondeCallback
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index): return self.layer(batch).square().mean()
    def validation_step(self, batch, index): self.layer(batch)
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
trainer = pl.Trainer(
    max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    num_sanity_val_steps=1, limit_val_batches=1, callbacks=[SondeCallback()],
)
trainer.fit(Model(), data, data)
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_tells_stages_epochs_and_steps(run_frameworks, root: Path, package: str) -> None:
    pytest.importorskip(package)
    run_frameworks(LIGHTNING, package, SONDE_COLLECTOR="off")
    rows = ask(root, STEPS)
    assert [row[:3] for row in rows] == [
        ("sanity_check", 0, 0),
        ("train", 0, 1), ("train", 0, 2), ("validation", 0, 2),
        ("train", 1, 3), ("train", 1, 4), ("validation", 1, 4),
    ]  # fmt: skip
    numbers = [row[3] for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + 7))
    ended = ask(root, "SELECT step FROM python.torch_step WHERE ended_by = 'user' ORDER BY step")
    assert [step for (step,) in ended] == numbers
    tags = dict(ask(root, TAGS))
    assert tags["model"] == "Model" and tags["accumulate"] == "2"


TRANSFORMERS = """
import warnings, sys
warnings.simplefilter("ignore")
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from sonde.integrations.huggingface import SondeCallback
class Model(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 1)
        self.post_init()
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}
data = [{"x": torch.ones(4), "labels": torch.zeros(1)} for _ in range(8)]
arguments = TrainingArguments(
    output_dir=sys.argv[1], num_train_epochs=2, per_device_train_batch_size=2,
    per_device_eval_batch_size=4, gradient_accumulation_steps=2, logging_steps=1, use_cpu=True,
    report_to=[], save_strategy="no", eval_strategy="epoch", disable_tqdm=True,
)
Trainer(Model(PretrainedConfig()), arguments, train_dataset=data, eval_dataset=data,
        callbacks=[SondeCallback()]).train()
"""


def test_transformers_tells_stages_epochs_steps_and_logs(
    run_frameworks, root: Path, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    run_frameworks(TRANSFORMERS, str(tmp_path / "out"), SONDE_COLLECTOR="off")
    rows = ask(root, STEPS)
    assert [(stage, step) for stage, _epoch, step, _ in rows] == [
        ("train", 1), ("train", 2), ("evaluate", 2), ("evaluate", 2),
        ("train", 3), ("train", 4), ("evaluate", 4), ("evaluate", 4),
    ]  # fmt: skip
    assert [epoch for stage, epoch, _, _ in rows if stage == "train"] == [0.5, 1, 1.5, 2]
    losses = ask(root, "SELECT global_step FROM job.loop_metric WHERE name = 'loss' ORDER BY t_ns")
    assert [step for (step,) in losses] == [1, 2, 3, 4]
    tags = dict(ask(root, TAGS))
    assert (tags["model"], tags["batch_size"], tags["accumulate"]) == ("Model", "2", "2")


ACCELERATE = """
import torch
from accelerate import Accelerator
from sonde.integrations.accelerate import SondeTracker, end_step
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=SondeTracker())
accelerator.init_trackers("mine", config={"lr": 0.1})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for number, batch in enumerate(data):
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    end_step(accelerator, epoch=0)
    accelerator.log({"loss": loss.item(), "tensor": loss}, step=number)
accelerator.end_training()
"""


def test_accelerate_tells_steps_config_and_logs(run_frameworks, root: Path) -> None:
    pytest.importorskip("accelerate")
    run_frameworks(ACCELERATE, SONDE_COLLECTOR="off")
    assert [row[:3] for row in ask(root, STEPS)] == [("train", 0, 1), ("train", 0, 2)]
    assert dict(ask(root, TAGS))["lr"] == "0.1"
    logged = ask(root, "SELECT name, global_step FROM job.loop_metric ORDER BY t_ns")
    assert logged == [("loss", number) for number in range(4)]
