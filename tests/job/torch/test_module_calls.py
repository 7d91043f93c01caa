"""Classes of modules with a `__call__` of their own."""

from __future__ import annotations

import pytest

from job.sources.test_torch import HEAD, query, record
from support.needs import need

need("torch")

pytestmark = pytest.mark.usefixtures("no_collector")

OWN = """
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = nn.Linear(8, 8)
    def __call__(self, x, **named): return super().__call__(x, **named) + 1
    def forward(self, x): return self.inner(x)
class Deeper(Block):
    def __call__(self, *args): return super().__call__(*args) * 2
class Plain(Block):
    def __call__(self, x): return self.forward(x)
class Mixin:
    def __call__(self, x): return super().__call__(x) - 1
class Mixed(Mixin, nn.Module):
    def forward(self, x): return x + 1
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.rest = nn.Sequential(Deeper(), Plain(), Mixed())
    def __call__(self, x): return super().__call__(x)
    def forward(self, x):
        for block in self.blocks: x = block(x)
        return self.rest(x)
"""


@pytest.fixture
def run(run_torch):
    return run_torch


def test_each_is_seen_once_under_its_name(run) -> None:
    record(run, OWN + "train(Whole(), 3); sonde.stop()")
    rows = query(
        "SELECT module, depth FROM python.torch_trace WHERE stage = 'forward' AND step = 1"
        " ORDER BY seq"
    )
    names = [("Whole", 0)]
    for at in range(3):
        names += [(f"Whole.blocks.{at}", 1), (f"Whole.blocks.{at}.inner", 2)]
    names += [
        ("Whole.rest", 1), ("Whole.rest.0", 2), ("Whole.rest.0.inner", 3), ("Whole.rest.1", 2),
        ("Whole.rest.1.inner", 3), ("Whole.rest.2", 2),
    ]  # fmt: skip
    assert [(row["module"], row["depth"]) for row in rows] == names


def test_classes_that_were_there_before_are_seen(run) -> None:
    run(HEAD + OWN + "sonde.start(collector='off'); train(Whole(), 2); sonde.stop()")
    rows = query("SELECT DISTINCT module FROM python.torch_trace WHERE module LIKE '%blocks._'")
    assert len(rows) == 3


def test_compiling_them_breaks_no_graph(run) -> None:
    code = (
        "counts = torch._dynamo.utils.counters\n"
        "def see(graph, inputs): print(len(graph.graph.nodes)); return graph\n"
        "for model in (Whole(), Block(), Plain()):\n"
        "    compiled = torch.compile(model, backend=see, fullgraph=True)\n"
        "    x = torch.ones(2, 8)\n"
        # Torch 2.4 itself gets one of them wrong.
        "    print(torch.equal(compiled(x), model(x))); compiled(x)\n"
        "print(dict(counts['graph_break']), counts['stats']['unique_graphs'])\n"
    )
    bare = run(HEAD + OWN + code)
    recorded = run(HEAD + "sonde.start(collector='off')\n" + OWN + code)
    assert recorded.stdout == bare.stdout


def test_nothing_of_a_class_changes(run) -> None:
    """Also while it is recorded: what is pickled by value is taken from the class."""
    code = (
        OWN + "import copy, inspect, io, pickle\n"
        "call = vars(Block)['__call__']\n"
        "train(Whole(), 2)\n"
        "assert vars(Block)['__call__'] is call is Block.__call__ and type(call) is type(lambda: 0)\n"
        "assert vars(nn.Module)['__call__'] is nn.Module.__call__\n"
        "model = copy.deepcopy(Whole()); file = io.BytesIO(); torch.save(model, file); file.seek(0)\n"
        "x = torch.ones(2, 8)\n"
        "assert torch.equal(torch.load(file, weights_only=False)(x), model(x))\n"
        "assert not hasattr(Mixin(), 'inner')\n"
        "try: Mixin()(x)\n"  # no module: the mixin's call has no other to go on to
        "except AttributeError as error: print('as ever')\n"
        "print(inspect.signature(model.blocks[0].__call__))\n"
    )
    done = run(HEAD + "sonde.start(collector='off')\n" + code + "sonde.stop()")
    assert done.stdout.split("\n")[:2] == ["as ever", "(x, **named)"]


def test_new_classes_are_made_as_ever(run) -> None:
    code = (
        "class Registered:\n"
        "    kinds = {}\n"
        "    def __init_subclass__(cls, name=None, **more):\n"
        "        super().__init_subclass__(**more); Registered.kinds[name] = cls\n"
        "class Kind(nn.Module, Registered, name='kind'): pass\n"
        "assert Registered.kinds == {'kind': Kind}\n"
        "try:\n"
        "    class Wrong(nn.Module, name='wrong'): pass\n"
        "except TypeError: print('refused')\n"
        "sonde.stop()\n"
        "assert '__init_subclass__' not in vars(nn.Module)\n"
        "class Later(nn.Module): pass\n"
    )
    assert run(HEAD + "sonde.start(collector='off')\n" + code).stdout == "refused\n"


def test_after_the_end_calls_are_nobodys_business(run) -> None:
    code = (
        OWN + "model = Whole(); train(model, 2); sonde.stop()\n"
        "train(model, 2)\n"
        "sonde.start(collector='off'); train(model, 2); sonde.stop()\n"
        "print('done')\n"
    )
    assert run(HEAD + "sonde.start(collector='off')\n" + code).stdout == "done\n"
