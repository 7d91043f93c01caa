"""Everything about torch that a recording could disturb, as one program that prints its results.

python tests/support/torch_results.py [record]"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import re
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sonde

if sys.argv[1:] == ["record"]:
    sonde.start(collector="off")
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a, self.r, self.b = (
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
        )

    def forward(self, x):
        return x + self.b(self.r(self.a(x)))


class Model(nn.Module):
    def __init__(self, again: str = "") -> None:
        super().__init__()
        self.parts, self.again = nn.ModuleList(Block() for _ in range(4)), again

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.again == "re") if self.again else part(x)
        return x


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("no")


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x, times: int):
        return x if times == 0 else self.one(self(x, times - 1))


def make(again: str = "") -> Model:
    torch.manual_seed(0)
    return Model(again)


def train(model: nn.Module, steps: int = 50) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 16, requires_grad=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compile_whole(backend: str) -> object:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    losses = train(torch.compile(make(), backend=backend, fullgraph=True))
    return losses, sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]


def compile_in_place() -> list[float]:
    model = make()
    model.compile(backend="aot_eager", fullgraph=True)
    return train(model)


def compile_parts() -> list[float]:
    model = make()
    for part in model.parts:
        part.compile(backend="aot_eager", fullgraph=True)
    return train(model)


def save() -> list[float]:
    file = io.BytesIO()
    torch.save(make(), file)
    file.seek(0)
    return train(torch.load(file, weights_only=False))


def differentiate() -> list[float]:
    model = make()
    found = torch.autograd.grad(model(ONES).sum(), list(model.parameters()))
    return [one.sum().item() for one in found]


def raise_in_forward() -> str:
    try:
        Raises()(1)
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def use_thread() -> float:
    sums: list[float] = []

    def work() -> None:
        model = make()
        model(torch.ones(8, 16)).sum().backward()
        sums.append(model.parts[0].a.weight.grad.sum().item())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    # MKL takes a lock when a thread that used it ends, after join() has returned. A fork in this
    # moment leaves a child in which MKL waits for ever, recorded or not.
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(0.001)
    return sums[0]


def fork() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(7 if len(train(make(), 5)) == 5 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


ONES = torch.ones(8, 16)
CASES = {
    "plain": lambda: train(make()),
    "checkpoint": lambda: train(make("no")),
    "reentrant checkpoint": lambda: train(make("re")),
    "autocast": lambda: _autocast(),
    "compile eager": lambda: compile_whole("eager"),
    "compile aot_eager": lambda: compile_whole("aot_eager"),
    "compile in place": compile_in_place,
    "compile parts": compile_parts,
    "deepcopy": lambda: train(copy.deepcopy(make())),
    "save": save,
    # Without the addresses in it, which have more digits in one process than in another.
    "pickle": lambda: len(re.sub(rb"\d{6,}", b"", pickle.dumps(make()))),
    "fx": lambda: str(torch.fx.symbolic_trace(make()).graph),
    "export": lambda: str(torch.export.export(make(), (ONES,)).graph),
    "jit.trace": lambda: torch.jit.trace(make(), ONES)(ONES).sum().item(),
    "jit.script": lambda: str(torch.jit.script(Block()).graph),
    "functional_call": lambda: torch.func.functional_call(
        make(), dict(make().named_parameters()), (ONES,)
    ).sum().item(),
    "func.grad": lambda: torch.func.grad(lambda x: make()(x).sum())(ONES).sum().item(),
    "autograd.grad": differentiate,
    "raise in forward": raise_in_forward,
    "recursion": lambda: list(Calls()(torch.ones(2, 4), 30).shape),
    "thread": use_thread,
    "fork": fork,
    "attribute": lambda: [
        nn.Module.__call__ is nn.Module._wrapped_call_impl,
        Block().__call__.__func__ is nn.Module._wrapped_call_impl,
    ],
}  # fmt: skip


def _autocast() -> list[float]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return train(make())


if __name__ == "__main__":
    print(json.dumps({name: case() for name, case in CASES.items()}))
