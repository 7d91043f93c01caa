"""Training jobs on a GPU, each with one planted problem, and the same job without it.

    python tests/scenarios/gpu_jobs.py JOB [--fixed] [--seconds 12]

Each is written as people write it; the report that it is made from is named beside it. `run_gpu.py`
records all of them, and holds what `sonde advise` says against RULES."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import gpu_memory_jobs
import gpu_text_jobs
import torch
from gpu_loop import Clock, allow_tf32, augment, make_model, make_optimizer, train_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

# Which rule names the cause, and the function in which it lies; "": it has no single line.
RULES: dict[str, tuple[str, str]] = {
    "launch_bound": ("launch_bound", ""),
    "loss_item": ("sync_points", "log_losses"),
    "mask_nonzero": ("sync_points", "pick_hard"),
    "pageable": ("pinned_memory", "move"),
    "one_worker": ("input_bound", "decode"),
    "twelve_workers": ("input_bound", "decode"),
    "float32": ("float32_matmul", ""),
    "checkpoint": ("periodic_outliers", "save"),
    "slow_optimizer": ("optimizer_loop", ""),
    "shared_gpu": ("gpu_shared", ""),
    "kept_graph": ("gpu_memory_creep", "kept_graph"),
    "empty_cache": ("gpu_allocations", "tidy"),
    "step_timer": ("sync_points", "stop_timer"),
    "finite_check": ("sync_points", "check_finite"),
    "accuracy_on_cpu": ("sync_points", "count_right"),
    "evaluation": ("evaluation", "evaluate"),
    "running_loss": ("gpu_memory_creep", "running_loss"),
    "fragmentation": ("fragmentation", ""),
    "small_batch": ("launch_bound", ""),
    "recompiled": ("recompilation", "train_step"),
    "grad_norms": ("sync_points", "log_grad_norms"),
    "mask_on_host": ("pinned_memory", "make_mask"),
    "averaged_model": ("launch_bound", "update"),
    "recurrent_cells": ("launch_bound", ""),
    "anomaly": ("debug_mode", ""),
    "launch_blocking": ("debug_mode", ""),
    "best_saved": ("periodic_outliers", "save_best"),
}


def launch_bound(clock: Clock, fixed: bool) -> None:
    """pytorch issue 76440: small models leave the GPU waiting for launches."""
    allow_tf32()
    width, rows = (2048, 16384) if fixed else (64, 32)
    model = make_model(width, 60 if not fixed else 12)
    optimizer = make_optimizer(model)
    batch = torch.randn(rows, width, device="cuda")
    for _ in clock:
        train_step(model, optimizer, batch)


def log_losses(loss: torch.Tensor, meters: dict[str, float]) -> None:
    meters["loss"] = meters.get("loss", 0.0) * 0.9 + loss.item() * 0.1


def loss_item(clock: Clock, fixed: bool) -> None:
    """pytorch forum 44309: loss.item() in every step; the next batch is prepared only after it."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch, meters = torch.randn(16384, 2048, device="cuda"), dict[str, float]()
    for step in clock:
        loss = train_step(model, optimizer, batch * augment(0.008))
        if not fixed or step % 50 == 0:
            log_losses(loss, meters)


def pick_hard(out: torch.Tensor) -> torch.Tensor:
    scores = out.square().mean(1)
    hard = (scores > scores.mean()).nonzero().squeeze(1)
    return out[hard]


def weigh_hard(out: torch.Tensor) -> torch.Tensor:
    scores = out.square().mean(1, keepdim=True)
    return torch.where(scores > scores.mean(), out, torch.zeros_like(out))


def mask_nonzero(clock: Clock, fixed: bool) -> None:
    """pytorch issue 12461: nonzero and boolean indexing synchronise."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch = torch.randn(16384, 2048, device="cuda")
    for _ in clock:
        optimizer.zero_grad(set_to_none=True)
        out = batch
        for layer in model:
            out = layer(out)
            out = weigh_hard(out) if fixed else pick_hard(out)
        out.square().mean().backward()
        optimizer.step()


def move(batch: torch.Tensor) -> torch.Tensor:
    return batch.to("cuda", non_blocking=True)


def pageable(clock: Clock, fixed: bool) -> None:
    """pytorch forum 24957: 128 MB from ordinary memory in every step."""
    allow_tf32()
    model = make_model(1024, 6)
    optimizer = make_optimizer(model)
    store = torch.randn(32768, 1024)
    store = store.pin_memory() if fixed else store
    for _ in clock:
        train_step(model, optimizer, move(store))


class Images(Dataset):
    """Pictures whose decoding takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10**6

    def decode(self, index: int) -> torch.Tensor:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            sum(range(200))
        return torch.full((1024,), float(index % 7))

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.decode(index)


def train_on_images(clock: Clock, seconds: float, workers: int) -> None:
    allow_tf32()
    model = make_model(1024, 12)
    optimizer = make_optimizer(model)
    loader = DataLoader(
        Images(seconds), 64, num_workers=workers, pin_memory=True, persistent_workers=True
    )
    for _, batch in zip(clock, loader, strict=False):
        train_step(model, optimizer, batch.to("cuda", non_blocking=True).repeat(256, 1))


def one_worker(clock: Clock, fixed: bool) -> None:
    """pytorch forum 13077: one worker cannot keep up."""
    train_on_images(clock, 0.00001 if fixed else 0.001, 2 if fixed else 1)


def twelve_workers(clock: Clock, fixed: bool) -> None:
    """pytorch issue 12831: many workers, and decoding is still slower than the GPU."""
    train_on_images(clock, 0.00001 if fixed else 0.02, 2 if fixed else 12)


def float32(clock: Clock, fixed: bool) -> None:
    """pytorch issue 67384: TF32 has been off by default since 1.12."""
    if fixed:
        allow_tf32()
    model = make_model(4096, 6)
    optimizer = make_optimizer(model)
    batch = torch.randn(8192, 4096, device="cuda")
    for step in clock:
        train_step(model, optimizer, batch)
        if step % 20 == 0:
            torch.cuda.synchronize()


def save(model: nn.Module, folder: str, step: int) -> None:
    torch.save(model.state_dict(), os.path.join(folder, f"{step % 2}.pt"))


def checkpoint(clock: Clock, fixed: bool) -> None:
    """pytorch lightning issue 8126: a checkpoint every few steps stops the loop."""
    allow_tf32()
    model = make_model(4096, 8)
    optimizer = make_optimizer(model)
    batch = torch.randn(8192, 4096, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        for step in clock:
            train_step(model, optimizer, batch)
            if step % 5 == 0:
                torch.cuda.synchronize()
            if step % (10**6 if fixed else 40) == 39:
                save(model, folder, step)


def slow_optimizer(clock: Clock, fixed: bool) -> None:
    """pytorch issue 71274: for-loop optimizers launch a dozen kernels for each tensor."""
    allow_tf32()
    model = make_model(256, 150)
    how = {"fused": True} if fixed else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **how)
    batch = torch.randn(65536 * 4 if fixed else 512, 256, device="cuda")
    for _ in clock:
        train_step(model, optimizer, batch)


def shared_gpu(clock: Clock, fixed: bool) -> None:
    """pytorch forum 149206: a forgotten process works on the same GPU."""
    source = "import torch\nx = torch.randn(4096, 4096, device='cuda')\nwhile True: y = x @ x"
    command = f'SONDE=0 {sys.executable} -c "{source}" >/dev/null 2>&1 & echo $!'
    other = 0  # a process whose parent is gone: nobody can tell that it came from here
    if not fixed:
        shell = subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.PIPE, text=True)
        other = int(shell.stdout)
    try:
        allow_tf32()
        model = make_model(2048, 12)
        optimizer = make_optimizer(model)
        batch = torch.randn(8192, 2048, device="cuda")
        for _ in clock:
            train_step(model, optimizer, batch)
    finally:
        if other:
            os.kill(other, signal.SIGKILL)


def stop_timer(spent: dict[str, float], name: str, begun: float) -> None:
    torch.cuda.synchronize()
    spent[name] = spent.get(name, 0.0) + time.perf_counter() - begun


def step_timer(clock: Clock, fixed: bool) -> None:
    """HuguesTHOMAS/KPConv-PyTorch issue 22: each step is timed, and synchronised for that."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch, spent = torch.randn(16384, 2048, device="cuda"), dict[str, float]()
    for step in clock:
        begun = time.perf_counter()
        train_step(model, optimizer, batch * augment(0.008))
        if not fixed or step % 50 == 0:
            stop_timer(spent, "step", begun)


def check_finite(loss: torch.Tensor) -> None:
    if torch.isnan(loss).any():
        raise RuntimeError("the loss is not a number")


def finite_check(clock: Clock, fixed: bool) -> None:
    """huggingface/transformers issue 33693: is the loss finite? `if` waits for the answer."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch = torch.randn(16384, 2048, device="cuda")
    for step in clock:
        loss = train_step(model, optimizer, batch * augment(0.008))
        if not fixed or step % 50 == 0:
            check_finite(loss)


def count_right(out: torch.Tensor, labels: torch.Tensor) -> int:
    guesses = out.argmax(1).cpu().numpy()
    return int((guesses == labels.numpy()).sum())


def accuracy_on_cpu(clock: Clock, fixed: bool) -> None:
    """pytorch/ignite issue 240: metrics are copied to the host in every step."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch, labels, right = torch.randn(16384, 2048, device="cuda"), torch.zeros(16384), 0
    for step in clock:
        optimizer.zero_grad(set_to_none=True)
        out = model(batch * augment(0.008))
        out.square().mean().backward()
        optimizer.step()
        if not fixed or step % 50 == 0:
            right += count_right(out.detach(), labels)


@torch.no_grad()
def evaluate(model: nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
    model.eval()
    total = sum(model(batch).square().mean() for batch in batches)
    model.train()
    torch.cuda.synchronize()
    return torch.as_tensor(total)


def evaluation(clock: Clock, fixed: bool) -> None:
    """isl-org/Open3D-ML pull request 385: all of the validation data, again and again."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch = torch.randn(16384, 2048, device="cuda")
    for step in clock:
        train_step(model, optimizer, batch)
        if step % 10 == 0:
            torch.cuda.synchronize()
        if step % (200 if fixed else 20) == 19:
            evaluate(model, [batch] * (5 if fixed else 60))


def small_batch(clock: Clock, fixed: bool) -> None:
    """Russell91/TensorBox issue 16: a batch of one leaves the GPU with nothing to do."""
    allow_tf32()
    model = make_model(1024, 24)
    optimizer = make_optimizer(model)
    batch = torch.randn(32768 if fixed else 1, 1024, device="cuda")
    for _ in clock:
        train_step(model, optimizer, batch)


def recompiled(clock: Clock, fixed: bool) -> None:
    """pytorch/pytorch issue 105279: every length is compiled for itself. The back end makes no
    kernels, so that the twin, which compiles once, is soon done with it."""
    allow_tf32()
    torch._dynamo.config.recompile_limit = 10**6
    torch._dynamo.config.accumulated_recompile_limit = 10**6
    model = torch.compile(make_model(1024, 12), dynamic=False, backend="aot_eager")
    optimizer = make_optimizer(model)
    for step in clock:
        rows = 16384 if fixed else 8192 + 8 * step
        train_step(model, optimizer, torch.randn(rows, 1024, device="cuda"))


# ---- running one -------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", choices=sorted(RULES))
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--wait", action="store_true",
                        help="begin, and record, when a line comes on stdin")  # fmt: skip
    args = parser.parse_args()
    elsewhere = {**vars(gpu_memory_jobs), **vars(gpu_text_jobs)}
    job: Callable[[Clock, bool], None] = globals().get(args.job) or elsewhere[args.job]
    if args.wait:
        sys.stdin.readline()
        import sonde

        sonde.start()
    job(Clock(args.seconds), args.fixed)


if __name__ == "__main__":
    main()
