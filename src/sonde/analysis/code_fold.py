"""Stacks as a person tells them: the user's own frames in full, each call of a library as one, and
no frames of ours or of Python's import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sonde.analysis.code_names import (
    IMPORTER,
    LIBRARY,
    MANY_CALLERS,
    MINE,
    PYTHON,
    SONDE,
    count_start,
    cut_our_imports,
    is_around,
    is_mine,
    is_ours,
    name_c_call,
    name_call,
    name_module,
    skip_start,
)
from sonde.analysis.profile import Place, ProfileFrame
from sonde.session.stack_table import is_native_place
from sonde.words import shorten_func

_FINDING = "importing modules"  # what Python itself does, before a module runs
_OURS = "sonde's own work"

# Part of the function that they stand in, and from Python 3.12 on mostly not even a frame.
_INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


class Step(NamedTuple):
    """One line of a folded stack: a function of the user's own, a call of a library, an import."""

    name: str
    owner: str  # MINE, LIBRARY or PYTHON
    file: str  # where the user's own code is at: in the function, or where it makes the call
    line: int
    first_line: int  # of the function; 0 for a call

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes two steps under the same caller one; calls from two lines are two."""
        return self.name, self.file, self.first_line or -self.line


def fold(
    frames: Sequence[ProfileFrame], own: Callable[[str], str], *, by_package: bool = False
) -> list[Step]:
    """Return a stack, root first, with what is not the user's own folded. `own` says whose code a
    file is. A program without such code is better told with one step for each package."""
    # Functions of C are parts of the call that the user's code, or a library's, has made.
    frames = [
        frame for frame in cut_our_imports(skip_start(frames))
        if not is_native_place(frame.file, frame.lineno)
    ]  # fmt: skip
    owners = [own(frame.file) for frame in frames]
    folding = _Folding(by_package=by_package)
    for frame, owner in zip(frames, owners, strict=True):
        if owner != SONDE and not folding.add(frame, owner):
            break
    return folding.end(is_ours=bool(owners) and owners[-1] == SONDE)


def add_c_call(steps: list[Step], call: str | None) -> list[Step]:
    """Return a stack with the C function that its last line calls, where that line is the user's
    own. A call of ours is part of the line at which it fell."""
    if call is None or call.startswith("sonde.") or not steps or steps[-1].owner != MINE:
        return steps
    return [*steps, Step(name_c_call(call), PYTHON, steps[-1].file, steps[-1].line, 0)]


def keep_all(frames: Sequence[ProfileFrame], own: Callable[[str], str]) -> list[Step]:
    """Return a stack with every frame but ours."""
    frames = cut_our_imports(frames)
    owners = [own(frame.file) for frame in frames]
    return [
        Step(shorten_func(frame.func), owner, frame.file, frame.lineno, frame.first_line)
        for frame, owner in zip(frames, owners, strict=True)
        if owner != SONDE
    ]


def tidy(places: Sequence[Place]) -> list[Place]:
    """Return a stack, root first, without frames of ours and what only runs the program, and in
    which an import is one place: the module that is imported, and not what Python does to find and
    load it. So is the way on which a server calls the user's own code, if it is long."""
    found: list[Place] = []
    is_import = False
    places = cut_our_imports(places)
    for place in places[count_start([one.file for one in places]) :]:
        if place.file.startswith(IMPORTER):
            is_import = True
        elif not is_ours(place.file):
            is_module = is_import and place.func == "<module>"
            named = place._replace(func=shorten_func(place.func))
            found.append(_name_import(place) if is_module else named)
            is_import = False
    if is_import:
        found.append(Place(_FINDING, IMPORTER + ">", 0))
    return _fold_callers(found) or [Place("(sonde)", "", 0)]


def _fold_callers(places: list[Place]) -> list[Place]:
    """Return a stack in which many frames of libraries before the user's own code are one place."""
    own = (at for at, place in enumerate(places) if is_mine(place.file))
    first = next(own, 0)
    if first < MANY_CALLERS:
        return places
    name = f"{name_module(places[0].file)} \N{HORIZONTAL ELLIPSIS}"
    return [places[0]._replace(func=name), *places[first:]]


def _name_import(place: Place) -> Place:
    return place._replace(func=f"import {name_module(place.file)}")


class _Folding:
    def __init__(self, *, by_package: bool) -> None:
        self.steps: list[Step] = []
        self._by_package = by_package
        self._folded: str | None = None  # the package that is being folded, or any
        self._wrapper: str | None = (
            None  # the name of its step, if that is a function in a function
        )
        self._imports = False
        self._caller = ("", 0)  # the user's own line that everything below was called from

    def add(self, frame: ProfileFrame, owner: str) -> bool:
        """Add the next frame; return False if all that follows is folded into it."""
        if frame.file.startswith(IMPORTER):
            self._imports = True
            return True
        if self._imports and frame.func == "<module>":
            self._imports = False
            self._add(f"import {name_module(frame.file)}", owner, frame, is_call=owner != MINE)
            return owner == MINE
        self._imports = False
        if owner == MINE and not (self.steps and frame.func.endswith(_INLINE)):
            self._add(shorten_func(frame.func), owner, frame, is_call=False)
        elif owner == MINE:
            self._folded = None
        else:
            self._call(frame, owner)
        return True

    def _call(self, frame: ProfileFrame, owner: str) -> None:
        module = name_module(frame.file)
        if not self.steps and is_around(module):
            return
        package = module.partition(".")[0] if self._by_package else "any"
        name = name_call(frame.func, frame.file)
        if package != self._folded:
            self._add(name, owner, frame, is_call=True)
            self._folded, self._wrapper = package, name if "<locals>" in frame.func else None
        elif self._wrapper == self.steps[-1].name:  # what a decorator made: better what it calls
            self.steps[-1] = self.steps[-1]._replace(name=name, owner=owner)
            self._wrapper = name if "<locals>" in frame.func else None

    def _add(self, name: str, owner: str, frame: ProfileFrame, *, is_call: bool) -> None:
        self._folded = None
        if is_call:
            self.steps.append(Step(name, owner, *self._caller, 0))
            return
        self._caller = frame.file, frame.lineno
        self.steps.append(Step(name, owner, frame.file, frame.lineno, frame.first_line))

    def end(self, *, is_ours: bool) -> list[Step]:
        """Return the steps; what we do at a stack's end is no work of the line at which it fell."""
        if self._imports:
            self.steps.append(Step(_FINDING, PYTHON, *self._caller, 0))
        elif is_ours and self.steps and self.steps[-1].owner == MINE:
            self.steps.append(Step(_OURS, SONDE, *self._caller, 0))
        return self.steps or [Step("(around the program)", LIBRARY, "", 0, 0)]
