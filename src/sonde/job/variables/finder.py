"""Watched variables: found in the frames of a running program without running any of its code.

What is read is memory that Python itself keeps: locals, globals, the dictionary or the slots of an
object, the items of lists, tuples and dictionaries. What would call something of the program's is
not read, however likely it is harmless: properties, other descriptors, `__getattr__`,
`__getitem__`, and keys that would be compared by their own `__eq__`."""

from __future__ import annotations

import re
import sys
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, ModuleType

from sonde import _core
from sonde.job.source_context import is_from_signal
from sonde.settings import WATCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_FRAMES = 256
_MOST_KEYS = 1000
# The parts of a torch module lie in dictionaries of its own, behind __getattr__.
_PARTS = ("_parameters", "_buffers", "_modules")

_PLACE = re.compile(r"""\.(\w+)|\[(-?\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
# Past whatever a metaclass makes of them.
_mro_of = type.__dict__["__mro__"].__get__
_vars_of = type.__dict__["__dict__"].__get__
_dict_of_module = vars(ModuleType)["__dict__"].__get__


class Missing:
    """There is no such value, or it cannot be read safely; why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class Watch:
    """One watched expression: a name, the way from there, and the function it is looked for in."""

    def __init__(self, text: str, func: str) -> None:
        self.text, self.func = text, func
        self.name = re.split(r"[.\[]", text, maxsplit=1)[0]
        self.places: list[str | tuple[int | str]] = []  # an attribute, or a place in brackets
        for attribute, number, one, other in _PLACE.findall(text[len(self.name) :]):
            self.places.append(attribute or ((int(number),) if number else (one or other,)))

    def read(self, frame: FrameType | None, own_folder: str) -> object:
        """The value, from the innermost call of the function that has the name; or Missing."""
        found = self._find(frame, own_folder)
        for place in self.places:
            if type(found) is Missing:  # not isinstance: it asks the value for its __class__
                return found
            found = (
                _read_attribute(found, place)
                if isinstance(place, str)
                else _read_item(found, place[0])
            )
        return found

    def _find(self, frame: FrameType | None, own_folder: str) -> object:
        around: FrameType | None = None
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if self._is_of(frame, own_folder):
                around = around or frame
                # Not f_locals: before 3.13 reading it has the frame keep what it held, to its end.
                for name, value in _core.frame_locals(frame):
                    if name == self.name:
                        return value
            frame = frame.f_back
        if around is None:
            return Missing(f"{self.func} is not under way when a step ends")
        shared = around.f_globals
        if type(shared) is dict and self.name in shared:
            return shared[self.name]
        return Missing(f"{self.func} has no {self.name}")

    def _is_of(self, frame: FrameType, own_folder: str) -> bool:
        code = frame.f_code
        if code.co_name != self.func.rpartition(".")[2]:
            return False
        whole = getattr(code, "co_qualname", self.func)  # from 3.11 on
        of_it = whole == self.func or whole.endswith("." + self.func)
        return of_it and not code.co_filename.startswith(own_folder)


def parse(text: str) -> tuple[Watch, ...]:
    """The expressions of `torch.watch`."""
    return tuple(Watch(*found) for found in re.findall(WATCH, text))


# ---- without running anything --------------------------------------------------------------------


def is_kind(value: object, kind: object) -> bool:
    """isinstance, by the true type: `__class__` may be a property."""
    return any(base is kind for base in _mro_of(type(value)))


def _read_item(value: object, key: int | str) -> object:
    if type(value) in (list, tuple) and isinstance(key, int):
        count = len(value)  # type: ignore[arg-type]
        return value[key] if -count <= key < count else Missing(f"it has no [{key}]")  # type: ignore[index]
    if not is_kind(value, dict):
        return Missing(f"[{key!r}] of {name_kind(value)} would run code")
    # Past __getitem__, and without a hash: keys that have the same one would be asked.
    items: Any = dict.items(value)  # type: ignore[arg-type]
    if len(items) > _MOST_KEYS:
        return Missing(f"more than {_MOST_KEYS} keys")
    for known, item in list(items):
        if type(known) is type(key) and known == key:
            return item
    return Missing(f"it has no [{key!r}]")


def _read_attribute(value: object, name: str) -> object:
    kind = type(value)
    if kind is ModuleType:
        return _dict_of_module(value).get(name, Missing(f"it has no {name}"))
    if kind is type:
        return _look_up(value, name)
    if is_tensor(value):
        return _read_grad(value, name)
    return _read_object(value, name)


def _read_object(value: object, name: str) -> object:
    """An attribute in the order in which Python itself looks for it."""
    shared = _look_up(type(value), name)
    if type(shared) is MemberDescriptorType:
        return _read_slot(shared, value)
    own = _read_own(value)
    is_data = _has(shared, "__set__") or _has(shared, "__delete__")
    if name in own and not is_data:
        return own[name]
    part = _read_part(value, own, name)
    if type(part) is not Missing:
        return part
    if is_data or _has(shared, "__get__"):
        return Missing(f"{name} of {name_kind(value)} would run code")
    return shared


def _read_slot(slot: MemberDescriptorType, value: object) -> object:
    try:
        return slot.__get__(value, type(value))  # memory, no code
    except AttributeError as error:
        if is_from_signal(error):
            raise
        return Missing(f"it has no {slot.__name__}")


def _look_up(kind: Any, name: str) -> object:
    """What a class and its bases hold under a name, as it is."""
    for base in _mro_of(kind):
        held = _vars_of(base)
        if name in held:
            return held[name]
    return Missing(f"it has no {name}")


def _has(value: object, name: str) -> bool:
    return type(_look_up(type(value), name)) is not Missing


def _read_own(value: object) -> dict[str, object]:
    """The object's own dictionary; empty where the class has put something else in its place."""
    way = _look_up(type(value), "__dict__")
    if type(way) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    own = way.__get__(value, type(value))  # type: ignore[attr-defined]
    return own if type(own) is dict else {}


def name_kind(value: object) -> str:
    """The name of a value's type."""
    name = type.__dict__["__qualname__"].__get__(type(value), type)
    return str(name)


# ---- torch ---------------------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    """A tensor or parameter of torch itself: what other kinds of them do is their business."""
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None))
    return type(value) in kinds


def _read_part(value: object, own: dict[str, object], name: str) -> object:
    """A parameter, buffer or module inside a module."""
    module = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    if module is not None and is_kind(value, module):
        for part in _PARTS:
            held = own.get(part)
            if is_kind(held, dict):
                found = _read_item(held, name)
                if type(found) is not Missing:
                    return found
    return Missing(f"it has no {name}")


def _read_grad(tensor: Any, name: str) -> object:
    # A tensor that is no leaf would warn.
    if name != "grad" or not tensor.is_leaf:
        return Missing(f"{name} of a tensor is not read")
    return tensor.grad
