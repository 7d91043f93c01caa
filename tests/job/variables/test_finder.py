"""Watched expressions: what is found in frames, and that no code of the program runs for it."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from types import SimpleNamespace
from typing import ClassVar

import pytest

from sonde.job.variables.finder import Missing, parse

OWN = "/no/such/folder/"
shared = {"rate": 0.5}


def read(text: str) -> object:
    """What a watch of this text finds from here."""
    (watch,) = parse(text)
    return watch.read(sys._getframe(), OWN)


def why(text: str) -> str:
    found = read(text)
    assert type(found) is Missing
    return found.why


class Trap:
    """Notices whatever is called of it."""

    called: ClassVar[list[str]] = []
    fixed = 7

    def __getattr__(self, name: str) -> object:
        Trap.called.append(f"__getattr__ {name}")
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        Trap.called.append("__eq__")
        return True

    def __hash__(self) -> int:
        return hash("key")

    def __getitem__(self, key: object) -> object:
        Trap.called.append("__getitem__")
        return 1

    @property
    def computed(self) -> int:
        Trap.called.append("property")
        return 1

    @property
    def __class__(self) -> type:  # type: ignore[override]
        Trap.called.append("__class__")
        return dict

    def method(self) -> None: ...


class Sly:
    """Makes something else of its attributes and its dictionary."""

    def __init__(self) -> None:
        object.__getattribute__(self, "__class__")
        self.x = 1

    def __getattribute__(self, name: str) -> object:
        if name == "x":
            Trap.called.append("__getattribute__")
        return object.__getattribute__(self, name)


class Hidden:
    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        Trap.called.append("__dict__")
        return {"x": 1}


class Slotted:
    __slots__ = ("empty", "x")

    def __init__(self) -> None:
        self.x = [1, 2, 3]


class Base:
    inherited = "from the class"


class Derived(Base):
    def __init__(self) -> None:
        self.own = {"a": (1, {"b": 2.5})}


class Odd(dict):
    def __getitem__(self, key: object) -> object:
        Trap.called.append("dict.__getitem__")
        return "odd"


@pytest.fixture(autouse=True)
def _nothing_is_called() -> object:
    Trap.called.clear()
    yield
    assert Trap.called == []


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("number", 3),
        ("derived.own['a'][1]['b']", 2.5),
        ('derived.own["a"][-2]', 1),
        ("derived.inherited", "from the class"),
        ("slotted.x[-1]", 3),
        ("space.deep.deeper", "there"),
        ("ordered['k']", 1),
        ("counted['k']", 2),
        ("odd['k']", "truth"),
        ("by_number[4]", "four"),
        ("Base.inherited", "from the class"),
        ("sys.byteorder", sys.byteorder),
        ("shared['rate']", 0.5),
        ("trap.fixed", 7),
        ("sly.x", 1),
        ("cell", "closed over"),
    ],
)
def test_names_attributes_and_places_are_read(expression: str, value: object) -> None:
    cell = "closed over"

    def function() -> object:
        number, derived, slotted = 3, Derived(), Slotted()
        space = SimpleNamespace(deep=SimpleNamespace(deeper="there"))
        ordered, counted, odd = OrderedDict(k=1), defaultdict(int, k=2), Odd(k="truth")
        by_number, trap, sly = {4: "four", "4": "text"}, Trap(), Sly()
        _ = (number, derived, slotted, space, ordered, counted, odd, by_number, sly, cell)
        found = read(f"{expression}@function")
        del trap
        return found

    assert function() == value


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("trap.computed", "computed of Trap would run code"),
        ("trap.method", "method of Trap would run code"),
        ("trap.unknown", "it has no unknown"),
        ("trap[0]", "[0] of Trap would run code"),
        ("hidden.x", "it has no x"),
        ("slotted.empty", "it has no empty"),
        ("slotted.x[9]", "it has no [9]"),
        ("slotted.x['a']", "['a'] of list would run code"),
        ("keys['key']", "it has no ['key']"),
        ("large['key']", "more than 1000 keys"),
        ("text.upper", "upper of str would run code"),
        ("nothing", "function has no nothing"),
        ("unset", "function has no unset"),
    ],
)
def test_what_would_run_code_or_is_not_there_is_named(expression: str, said: str) -> None:
    def function() -> str:
        trap, hidden, slotted, text = Trap(), Hidden(), Slotted(), "text"
        keys, large = {trap: 1}, dict.fromkeys(range(1001))
        _ = (hidden, slotted, text, keys, large)
        found = why(f"{expression}@function")
        if not found:
            unset = 1
            assert unset
        return found

    assert function() == said


def test_the_innermost_call_that_has_the_name_counts() -> None:
    def step(deeper: int) -> object:
        if deeper:
            x = deeper  # noqa: F841
            return step(deeper - 1)
        return read("x@step")

    assert step(2) == 1


def test_a_method_is_found_by_its_name_and_by_its_class() -> None:
    class Trainer:
        def step(self) -> list[object]:
            loss = 1.5
            assert loss
            return [read("loss@step"), read("loss@Trainer.step")]

    assert Trainer().step() == [1.5, 1.5]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name")
def test_a_method_of_another_class_is_not_taken_for_it() -> None:
    class Other:
        def step(self) -> str:
            loss = 1.5
            assert loss
            return why("loss@Trainer.step")

    assert Other().step() == "Trainer.step is not running when a step ends"


def test_a_function_that_is_not_under_way_is_named() -> None:
    assert why("loss@train") == "train is not running when a step ends"


def test_our_own_functions_are_not_meant() -> None:
    def step() -> object:
        loss = 1
        assert loss
        (watch,) = parse("loss@step")
        return watch.read(sys._getframe(), __file__)

    assert type(step()) is Missing


def test_several_are_separated_by_semicolons_or_commas() -> None:
    found = parse("a@f; b.c[0]['d;,']@g.h ,x@<module>;")
    assert [(watch.text, watch.func) for watch in found] == [
        ("a", "f"),
        ("b.c[0]['d;,']", "g.h"),
        ("x", "<module>"),
    ]


def test_nothing_is_kept_alive_by_looking() -> None:
    import weakref

    class Thing: ...

    def function() -> object:
        thing = Thing()
        watched = weakref.ref(thing)
        assert read("thing@function") is thing
        del thing
        return watched()

    assert function() is None


# ---- torch ---------------------------------------------------------------------------------------


def test_parts_of_a_module_and_gradients_are_read() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    out = model(torch.randn(4, 2)).sum()
    out.backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

    def train() -> list[object]:
        _ = (model, out, optimizer)
        texts = (
            "net.fc.weight", "net.fc.weight.grad", "net.norm.running_mean", "out.grad", "out.shape",
            "optimizer.param_groups[0]['lr']",
        )  # fmt: skip
        net = torch.nn.ModuleDict({"fc": model[0], "norm": model[1]})
        found = [read(f"{text}@train") for text in texts]
        return [net.fc.weight, net.norm.running_mean, *found]

    weight, mean, *found = train()
    assert found[0] is weight and found[1] is weight.grad and found[2] is mean
    assert [one.why for one in found[3:5]] == [
        "grad of a tensor is not read",
        "shape of a tensor is not read",
    ]
    assert found[5] == 0.25
