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
from collections.abc import Callable, Iterator

import torch
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
    "kept_graph": ("gpu_memory_creep", ""),
    "empty_cache": ("gpu_allocations", "tidy"),
    "slow_optimizer": ("optimizer_loop", ""),
    "shared_gpu": ("gpu_shared", ""),
}


class Clock:
    """Counts steps until the time is over; what warms up does not count."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def __iter__(self) -> Iterator[int]:
        step = 0
        while time.monotonic() < self.end:
            yield step
            step += 1


def make_model(width: int, depth: int) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 16)).cuda()


def allow_tf32() -> None:
    torch.set_float32_matmul_precision("high")


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


# ---- jobs ----------------------------------------------------------------------------------------


def launch_bound(clock: Clock, fixed: bool) -> None:
    """pytorch issue 76440: small models leave the GPU waiting for launches."""
    allow_tf32()
    width, rows = (2048, 16384) if fixed else (64, 32)
    model = make_model(width, 60 if not fixed else 12)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    batch = torch.randn(rows, width, device="cuda")
    for _ in clock:
        train_step(model, optimizer, batch)


def augment(seconds: float) -> float:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))
    return 1.0


def log_losses(loss: torch.Tensor, meters: dict[str, float]) -> None:
    meters["loss"] = meters.get("loss", 0.0) * 0.9 + loss.item() * 0.1


def loss_item(clock: Clock, fixed: bool) -> None:
    """pytorch forum 44309: loss.item() in every step; the next batch is prepared only after it."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
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
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
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
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
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
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
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
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
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
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    batch = torch.randn(8192, 4096, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        for step in clock:
            train_step(model, optimizer, batch)
            if step % 5 == 0:
                torch.cuda.synchronize()
            if step % (10**6 if fixed else 40) == 39:
                save(model, folder, step)


def kept_graph(clock: Clock, fixed: bool) -> None:
    """pytorch faq: outputs that are kept in a list outlive their step."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    batch = torch.randn(16384, 2048, device="cuda")
    outputs = []
    for _ in clock:
        optimizer.zero_grad(set_to_none=True)
        out = model(batch)
        out.square().mean().backward()
        outputs.append(out.detach() if not fixed else None)
        optimizer.step()


def tidy() -> None:
    torch.cuda.empty_cache()


def empty_cache(clock: Clock, fixed: bool) -> None:
    """pytorch forum 14232: empty_cache in every step makes training slow."""
    allow_tf32()
    model = make_model(1024, 8)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    batch = torch.randn(8192, 1024, device="cuda")
    for _ in clock:
        train_step(model, optimizer, batch)
        if not fixed:
            tidy()


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
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
        batch = torch.randn(8192, 2048, device="cuda")
        for _ in clock:
            train_step(model, optimizer, batch)
    finally:
        if other:
            os.kill(other, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", choices=sorted(RULES))
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parser.parse_args()
    job: Callable[[Clock, bool], None] = globals()[args.job]
    job(Clock(args.seconds), args.fixed)


if __name__ == "__main__":
    main()
