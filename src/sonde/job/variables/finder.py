"""Find watched variables in the frames of a running program without running any of its code.

Only memory that Python itself manages is read: locals, globals, the dictionary or the slots of an
object, and the items of lists, tuples and dictionaries. Nothing is read that would call code of the
program, however harmless: properties, other descriptors, `__getattr__`, `__getitem__`, and keys
that would be compared by their own `__eq__`."""

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

_MAX_FRAMES = 256
_MAX_KEYS = 1000
# The parts of a torch module are in dictionaries of its own, which __getattr__ searches.
_PARTS = ("_parameters", "_buffers", "_modules")

_PLACE = re.compile(r"""\.(\w+)|\[(-?\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
# These bypass whatever a metaclass defines.
_mro_of = type.__dict__["__mro__"].__get__
_vars_of = type.__dict__["__dict__"].__get__
_dict_of_module = vars(ModuleType)["__dict__"].__get__


class Missing:
    """The reason why there is no such value, or why it cannot be read safely."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class Watch:
    """One watched expression: a name, the places that follow it, and the function it is in."""

    def __init__(self, text: str, func: str) -> None:
        self.text, self.func = text, func
        self.name = re.split(r"[.\[]", text, maxsplit=1)[0]
        self.places: list[str | tuple[int | str]] = []  # an attribute, or a key in brackets
        for attribute, number, one, other in _PLACE.findall(text[len(self.name) :]):
            self.places.append(attribute or ((int(number),) if number else (one or other,)))

    def read(self, frame: FrameType | None, own_folder: str) -> object:
        """Return the value from the innermost call of the function that has it, or Missing."""
        found = self._find(frame, own_folder)
        for place in self.places:
            if type(found) is Missing:  # not isinstance, which reads the value's __class__
                return found
            found = (
                _read_attribute(found, place)
                if isinstance(place, str)
                else _read_item(found, place[0])
            )
        return found

    def _find(self, frame: FrameType | None, own_folder: str) -> object:
        around: FrameType | None = None
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if self._is_of(frame, own_folder):
                around = around or frame
                # Not f_locals: before 3.13, reading it makes the frame keep these objects until it
                # ends.
                for name, value in _core.frame_locals(frame):
                    if name == self.name:
                        return value
            frame = frame.f_back
        if around is None:
            return Missing(f"{self.func} is not running when a step ends")
        shared = around.f_globals
        if type(shared) is dict and self.name in shared:
            return shared[self.name]
        return Missing(f"{self.func} has no {self.name}")

    def _is_of(self, frame: FrameType, own_folder: str) -> bool:
        code = frame.f_code
        if code.co_name != self.func.rpartition(".")[2]:
            return False
        full = getattr(code, "co_qualname", self.func)  # since 3.11
        is_named = full == self.func or full.endswith("." + self.func)
        return is_named and not code.co_filename.startswith(own_folder)


def parse(text: str) -> tuple[Watch, ...]:
    """Return the expressions in a value of `torch.watch`."""
    return tuple(Watch(*found) for found in re.findall(WATCH, text))


# ---- reading without running code ----------------------------------------------------------------


def is_kind(value: object, kind: object) -> bool:
    """Return what isinstance would, but by the true type: `__class__` may be a property."""
    return any(base is kind for base in _mro_of(type(value)))


def _read_item(value: object, key: int | str) -> object:
    if type(value) in (list, tuple) and isinstance(key, int):
        count = len(value)  # type: ignore[arg-type]
        return value[key] if -count <= key < count else Missing(f"it has no [{key}]")  # type: ignore[index]
    if not is_kind(value, dict):
        return Missing(f"[{key!r}] of {name_kind(value)} would run code")
    # Bypasses __getitem__, and hashes nothing: keys with the same hash would be compared.
    items: Any = dict.items(value)  # type: ignore[arg-type]
    if len(items) > _MAX_KEYS:
        return Missing(f"more than {_MAX_KEYS} keys")
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
    """Return an attribute, searching in the same order as Python itself."""
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
        return slot.__get__(value, type(value))  # reads memory, runs no code
    except AttributeError as error:
        if is_from_signal(error):
            raise
        return Missing(f"it has no {slot.__name__}")


def _look_up(kind: Any, name: str) -> object:
    """Return what a class or its bases hold under a name, unbound."""
    for base in _mro_of(kind):
        held = _vars_of(base)
        if name in held:
            return held[name]
    return Missing(f"it has no {name}")


def _has(value: object, name: str) -> bool:
    return type(_look_up(type(value), name)) is not Missing


def _read_own(value: object) -> dict[str, object]:
    """Return the object's own dictionary; empty if the class defines `__dict__` itself."""
    descriptor = _look_up(type(value), "__dict__")
    if type(descriptor) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    own = descriptor.__get__(value, type(value))  # type: ignore[attr-defined]
    return own if type(own) is dict else {}


def name_kind(value: object) -> str:
    """Return the name of a value's type."""
    name = type.__dict__["__qualname__"].__get__(type(value), type)
    return str(name)


# ---- torch ---------------------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor or parameter of torch itself: subclasses may run code."""
    torch = sys.modules.get("torch")
    kinds = (getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None))
    return type(value) in kinds


def _read_part(value: object, own: dict[str, object], name: str) -> object:
    """Return a parameter, buffer or module inside a module."""
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
    # Reading the gradient of a tensor that is not a leaf would print a warning.
    if name != "grad" or not tensor.is_leaf:
        return Missing(f"{name} of a tensor is not read")
    return tensor.grad
