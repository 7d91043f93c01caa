"""The room that a recording takes, in memory and on disk, with and without PyTorch."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import child
from result import Result, find_noise

_GOALS = {"plain": 3.0, "torch": 8.0}  # MiB
_NAMES = {"plain": "a program that does nothing special", "torch": "a training with PyTorch"}
_SECONDS = 3.0


def measure(rounds: int) -> list[Result]:
    """The memory of the recorded program beyond that of the bare one, and its session on disk."""
    results = []
    with child.open_root() as root:
        for what, goal in _GOALS.items():
            memory, disk = [], []
            for _ in range(rounds):
                bare, _none = take(root, what, False)
                recorded, files = take(root, what, True)
                memory.append(recorded - bare)
                disk.append(files)
            name = _NAMES[what]
            results += [
                Result(f"{name}: memory added", "MiB", memory, goal, noise=find_noise(memory)),
                Result(f"{name}: session on disk", "MiB", disk, goal),
            ]
    return results


def take(root: str, what: str, is_recorded: bool) -> tuple[float, float]:
    """Measure one fresh process."""
    # Without the random allocations of layout.py: they are larger than what is looked for.
    code = f"import sys; sys.path.insert(0, {str(child.HERE)!r}); import bench_room; "
    words = [sys.executable, "-c", f"{code}print(bench_room.find_room({what!r}, {is_recorded}))"]
    text = child.run(words, root, shaken=False, SONDE=str(int(is_recorded)))
    memory, disk = (float(word) for word in text.strip("()\n ").split(","))
    return memory, disk


def find_room(what: str, is_recorded: bool) -> tuple[float, float]:
    """MiB of private and shared memory of this process, and of its session; in a fresh Python."""
    import sonde

    assert (sonde.session() is not None) == is_recorded
    if what == "torch":
        train()
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        sum(range(20_000))
        time.sleep(0.002)
    folder = sonde.session()
    files = [] if folder is None else Path(folder.folder).rglob("*")
    return charged(), sum(path.lstat().st_blocks for path in files) * 512 / 2**20


def train() -> None:
    """A small training, with all that PyTorch loads for it."""
    import torch

    layers = [torch.nn.Linear(64, 64) for _ in range(10)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(300):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def charged() -> float:
    """MiB that a memory limit counts: anonymous memory, and our files in memory."""
    text = Path("/proc/self/smaps").read_text()
    total = 0
    for part in text.split("VmFlags:"):
        name = "Shared_Dirty:" if "sonde-bench-" in part else "Anonymous:"
        names = (name, "Private_Dirty:") if name == "Shared_Dirty:" else (name,)
        total += sum(int(line.split()[1]) for line in part.splitlines() if line.startswith(names))
    return total / 1024
