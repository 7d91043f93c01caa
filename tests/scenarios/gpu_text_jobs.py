"""Jobs of gpu_jobs.py on a small language model: what people do beside the step itself."""

from __future__ import annotations

import copy
import os
import random
import tempfile
from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu_loop import Clock, allow_tf32, make_optimizer
from torch import nn

WORDS = 8192


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.parts(self.before(x)).view(rows, length, 3, 8, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.inner(self.between(x))


class Speaker(nn.Module):
    def __init__(self, width: int = 768, depth: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, WORDS)

    def forward(self, text: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.words(text)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def write(rows: int, length: int) -> torch.Tensor:
    return torch.randint(WORDS, (rows, length), device="cuda")


def learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    text: torch.Tensor,
    mask: torch.Tensor | None = None,
    watch: Callable[[nn.Module], None] | None = None,
) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        out = model(text[:, :-1], mask)
        loss = F.cross_entropy(out.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    if watch is not None:
        watch(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make(width: int = 768, depth: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    allow_tf32()
    model = Speaker(width, depth).cuda()
    return model, make_optimizer(model)


class History:
    def __init__(self) -> None:
        self.norms: dict[str, list[float]] = {}

    def log_grad_norms(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.norms.setdefault(name, []).append(parameter.grad.norm().item())


def grad_norms(clock: Clock, fixed: bool) -> None:
    """openvdb/fvdb-reality-capture pull request 144: what is logged in each step waits."""
    model, optimizer = make()
    text, history = write(32, 512), History()
    for step in clock:
        is_logged = not fixed or step % 100 == 0
        learn(model, optimizer, text, watch=history.log_grad_norms if is_logged else None)


def make_mask(rows: int, length: int) -> torch.Tensor:
    return torch.ones(rows, 1, length, length).tril().log().to("cuda")


def mask_on_host(clock: Clock, fixed: bool) -> None:
    """HVision-NKU/SRFormer issue 5: the mask is made on the host, for each call of the model."""
    model, optimizer = make()
    text, kept = write(32, 513), make_mask(32, 512).bfloat16()
    for _ in clock:
        mask = kept if fixed else make_mask(32, 512).bfloat16()
        learn(model, optimizer, text, mask)


class Average:
    def __init__(self, model: nn.Module, fixed: bool) -> None:
        self.model, self.mean, self.fixed = model, copy.deepcopy(model), fixed

    @torch.no_grad()
    def update(self) -> None:
        if self.fixed:
            pair = list(self.mean.parameters()), list(self.model.parameters())
            torch._foreach_lerp_(*pair, 0.001)
            return
        new = self.model.state_dict()
        for name, value in self.mean.state_dict().items():
            value.copy_(0.999 * value + (1 - 0.999) * new[name])


def averaged_model(clock: Clock, fixed: bool) -> None:
    """open-mmlab/mmengine pull request 281: the mean of a model is updated tensor by tensor."""
    model, optimizer = make(512, 48)
    average, text = Average(model, fixed), write(64 if fixed else 8, 256)
    for _ in clock:
        learn(model, optimizer, text)
        average.update()


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(256, 256) for _ in range(2))
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: list = [None, None]
        for at in range(x.shape[1]):
            out = x[:, at]
            for number, cell in enumerate(self.cells):
                states[number] = cell(out, states[number])
                out = states[number][0]
        return self.head(out)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(1024, 1024, 4, batch_first=True), nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def recurrent_cells(clock: Clock, fixed: bool) -> None:
    """dr-costas/SEDLM issue 1: a loop over time calls a cell, instead of a layer over all of it."""
    allow_tf32()
    model = (Layer() if fixed else Cells()).cuda()
    optimizer = make_optimizer(model)
    shape = (2048, 100, 1024) if fixed else (64, 100, 256)
    x, kinds = torch.randn(shape, device="cuda"), torch.zeros(shape[0], dtype=int, device="cuda")
    for _ in clock:
        F.cross_entropy(model(x), kinds).backward()
        optimizer.step()
        optimizer.zero_grad()


def anomaly(clock: Clock, fixed: bool) -> None:
    """Lightning-AI/pytorch-lightning issue 12344: anomaly mode makes training three times slower."""
    model, optimizer = make()
    text = write(64 if fixed else 4, 512)
    torch.autograd.set_detect_anomaly(not fixed)
    for _ in clock:
        learn(model, optimizer, text)


def launch_blocking(clock: Clock, fixed: bool) -> None:
    """horenbergerb/BernoulliDiffusion issue 23: a switch for debugging is left in the program."""
    if not fixed:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    model, optimizer = make(512, 16)
    text = write(128 if fixed else 16, 512)
    for _ in clock:
        learn(model, optimizer, text)


def save_best(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, os.path.join(folder, "best.pt"))


def best_saved(clock: Clock, fixed: bool) -> None:
    """deepchem/deepchem issue 458: more time for saving than for computing. A model is saved
    whenever it is better than before, which comes irregularly."""
    model, optimizer = make()
    text, chance = write(32, 512), random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        for step in clock:
            learn(model, optimizer, text)
            if step % 5 == 4 and chance.random() < (0.0 if fixed else 0.2):
                save_best(model, optimizer, folder)
