"""Read what only Python knows about its threads: names, locals and tasks. Holds the GIL."""

from __future__ import annotations

import os
import sys
from itertools import islice

from sonde import _core
from sonde.job.source_context import SourceContext, has_gil
from sonde.session.files import LOCALS
from sonde.session.records import Locals, LocalsFrame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

NAMES, INSPECTION, STACKS, TASKS, REPORT = 1, 2, 4, 8, 16  # as in sampler_binding.c

_MAX_FRAMES, _MAX_LOCALS, _MAX_ITEMS, _MAX_CHARS, _MAX_DEPTH = 64, 64, 8, 200, 3
_MAX_TASKS = 1000
_MAX_STACK = 512  # frames, as in frames.h


class Objects:
    """Answers the sampler's requests, in its helper thread."""

    def __init__(self, context: SourceContext, emit_task: _core.Writer) -> None:
        self._context, self._emit_task = context, emit_task
        self._session = context.session  # kept: the context has none while the recording stops

    def answer(self, sampler: _core.Sampler, wants: int) -> None:
        """Do what the sampler wants: a sum of NAMES, INSPECTION and STACKS."""
        moment, number = sampler.asked()
        if wants & STACKS:
            sampler.take(list(_list_stacks()), moment)
        if wants & (NAMES | INSPECTION):
            sampler.name(dict(_list_names()))
        if wants & INSPECTION:
            try:
                self._write_locals(number)
            except OSError as error:  # a full disk must not end this thread's other work
                self._session.log(f"locals could not be written: {error}")
            if has_gil():  # else the frames of coroutines may change while we look at them
                _write_tasks(self._emit_task)
            self._context.publish()
            sampler.inspected(number)

    def _write_locals(self, number: int) -> None:
        # Without a GIL, a thread may change its locals, and free them, while we look at them.
        tids = _find_ids() if has_gil() else {}
        threads = {
            str(tids[ident]): list(_list_frames(frame))
            for ident, frame in sys._current_frames().items()
            if ident in tids
        }
        path = os.path.join(self._session.folder, LOCALS)
        Locals(number=number, t_ns=_core.clock_ns(), threads=threads).write(path)


def _own_ident() -> int:
    from _thread import get_ident

    return get_ident()


# ---- threads -------------------------------------------------------------------------------------


def _list_threads() -> list[object]:
    threading = sys.modules.get("threading")  # a program without it has one thread
    # Without a GIL we may come while it is being imported.
    return list(getattr(threading, "_active", {}).values())


def _list_names() -> Iterator[tuple[int, str]]:
    for thread in _list_threads():
        known = _read_dict(thread)
        tid, name = known.get("_native_id"), known.get("_name")
        if type(tid) is int and type(name) is str:
            yield tid, name


def _find_ids() -> dict[int, int]:
    """Return the kernel's id of each thread, by Python's id."""
    found = {}
    for thread in _list_threads():
        known = _read_dict(thread)
        tid, ident = known.get("_native_id"), known.get("_ident")
        if type(tid) is int and type(ident) is int:
            found[ident] = tid
    if not found:  # a program without `threading`
        found = {ident: os.getpid() for ident in sys._current_frames() if ident != _own_ident()}
    return found


def _read_dict(value: object) -> dict[str, object]:
    """Return the attributes of an object without running code of its class."""
    found = object.__getattribute__(value, "__dict__")
    return found if type(found) is dict else {}


def _list_stacks() -> Iterator[tuple[int, bool, list[tuple[str, str, int, int]]]]:
    """Yield every thread's stack, root first: the slow way, where C cannot read stacks."""
    tids = _find_ids()
    for ident, frame in sys._current_frames().items():
        if ident in tids:
            some = list(islice(_walk(frame), _MAX_STACK + 1))
            frames = [_describe(f.f_code, f.f_lineno) for f in some[: _MAX_STACK - 1]]
            if len(some) > _MAX_STACK:
                frames.append(("<cut>", "", 0, 0))
            elif len(some) == _MAX_STACK:
                frames.append(_describe(some[-1].f_code, some[-1].f_lineno))
            yield tids[ident], False, frames[::-1]


def _walk(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _describe(code: CodeType, line: int | None) -> tuple[str, str, int, int]:
    name = getattr(code, "co_qualname", code.co_name)
    first = code.co_firstlineno
    return name, code.co_filename, first if line is None else line, first


# ---- locals --------------------------------------------------------------------------------------


def _list_frames(frame: FrameType) -> Iterator[LocalsFrame]:
    """Yield frames with their locals, innermost first; of far callers only the frames."""
    for depth, f in enumerate(islice(_walk(frame), _MAX_STACK)):
        name, file, line, _first = _describe(f.f_code, f.f_lineno)
        # Not f_locals: before 3.13, reading it makes the frame keep these objects until it ends.
        is_near = depth < _MAX_FRAMES and name != "<module>"
        found = _core.frame_locals(f) if is_near else []
        shown = {key: show(value) for key, value in found[:_MAX_LOCALS]}
        if len(found) > _MAX_LOCALS:
            shown["…"] = f"{len(found) - _MAX_LOCALS} more"
        yield LocalsFrame(func=name, file=file, line=line, locals=shown)


def show(value: object, depth: int = _MAX_DEPTH) -> str:
    """Return a bounded text for a value, without running code of the program: of types that are
    not known, only the name is shown."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex):
        # A huge integer takes long to convert to decimal.
        huge = kind is int and value.bit_length() > 256  # type: ignore[attr-defined]
        return f"<int of {value.bit_length()} bits>" if huge else repr(value)  # type: ignore[attr-defined]
    if kind in (str, bytes, bytearray):
        cut = value[:_MAX_CHARS]  # type: ignore[index]
        rest = len(value) - len(cut)  # type: ignore[arg-type]
        return repr(cut) + (f" … {rest} more" if rest else "")
    if kind in (list, tuple, set, frozenset, dict):
        return _show_items(value, kind, depth)
    return _show_array(value, kind) or f"<{name_type(kind)} at {id(value):#x}>"


def name_type(kind: type) -> str:
    """Return the full name of a type without running code of its metaclass."""
    module, name = (
        type.__dict__[key].__get__(kind, type(kind)) for key in ("__module__", "__qualname__")
    )
    return f"{module}.{name}" if type(module) is str else str(name)


def _show_items(value: object, kind: type, depth: int) -> str:
    count = len(value)  # type: ignore[arg-type]
    if depth == 0:
        return f"<{kind.__name__} of {count}>"
    # Nothing is hashed, because that could run code of the program.
    if kind is dict:
        pairs = list(islice(value.items(), _MAX_ITEMS))  # type: ignore[attr-defined]
        shown = [f"{show(key, 0)}: {show(item, depth - 1)}" for key, item in pairs]
    else:
        shown = [show(item, depth - 1) for item in islice(value, _MAX_ITEMS)]  # type: ignore[call-overload]
    if count > len(shown):
        shown.append(f"… {count - len(shown)} more")
    first, last = "[]" if kind is list else "()" if kind is tuple else "{}"
    return f"{first}{', '.join(shown)}{last}"


def _show_array(value: object, kind: type) -> str | None:
    """Return the shape and type of a tensor or array, or None for anything else. A subclass does
    not count: it could run code of the program."""
    for module, name in (("torch", "Tensor"), ("numpy", "ndarray")):
        known = getattr(sys.modules.get(module), name, None)
        if kind is known:
            shape = "x".join(map(str, value.shape)) or "scalar"  # type: ignore[attr-defined]
            where = f" {value.device}" if module == "torch" else ""  # type: ignore[attr-defined]
            return f"<{module}.{name} {shape} {value.dtype}{where}>"  # type: ignore[attr-defined]
    return None


# ---- asyncio -------------------------------------------------------------------------------------


def _write_tasks(emit: _core.Writer) -> None:
    now = _core.clock_ns()
    asyncio: Any = sys.modules.get("_asyncio")
    kind: Any = getattr(asyncio, "Task", None)
    if kind is None:
        return
    loops = _find_loops(asyncio)
    running = [*getattr(sys.modules.get("asyncio.tasks"), "_current_tasks", {}).values()]
    running += [asyncio.current_task(loop) for loop in loops]
    for task in _open_tasks(_list_references(asyncio, loops), kind)[:_MAX_TASKS]:
        # Methods of the base type, because a subclass may override them.
        frames, waits_for = follow_coroutine(kind.get_coro(task))
        state = "running" if any(task is one for one in running) else "waiting"
        name = kind.get_name(task)
        for depth, (func, file, line, _first) in enumerate(reversed(frames)):
            emit(now, id(task), show(name)[1:-1], state, waits_for, depth, func, file, line)


def list_some_tasks(most: int, turn: int) -> tuple[list[Any], int]:
    """Return about `most` of the tasks that are not done, others at each `turn`, and how many tasks
    each of them stands for."""
    asyncio: Any = sys.modules.get("_asyncio")
    kind: Any = getattr(asyncio, "Task", None)
    if kind is None:
        return [], 1
    references = _list_references(asyncio, _find_loops(asyncio))
    step = 1 + len(references) // most
    return _open_tasks(references[turn % step :: step], kind), step


def _find_loops(asyncio: Any) -> list[object]:
    """Return the event loops that run; none before 3.14, where one list has the tasks of all."""
    if not hasattr(asyncio, "all_tasks"):
        return []
    mark = object()
    asyncio._set_running_loop(mark)  # of this thread, which has none
    try:
        return _core.running_loops(mark)
    finally:
        asyncio._set_running_loop(None)


def _list_references(asyncio: Any, loops: list[object]) -> list[Any]:
    """Return every task, or a weak reference to it: of every loop, from 3.14 on of those that
    run."""
    tasks = sys.modules.get("asyncio.tasks")
    found: list[Any] = []
    for name in ("_scheduled_tasks", "_all_tasks"):
        group = getattr(tasks, name, None)
        if group is not None:
            # At once: to go through the WeakSet itself fails where a task begins meanwhile.
            found = list(group.data)
            break
    found += list(getattr(tasks, "_eager_tasks", ()))
    for loop in loops:
        found += asyncio.all_tasks(loop)
    return found


def _open_tasks(references: list[Any], kind: Any) -> list[Any]:
    """Return the tasks that are not done."""
    from weakref import ref

    found = [one() if isinstance(one, ref) else one for one in references]
    return [one for one in found if isinstance(one, kind) and not kind.done(one)]


def follow_coroutine(coro: object) -> tuple[list[tuple[str, str, int, int]], str | None]:
    """Return the chain of awaits from a coroutine inwards, outermost first, and what the innermost
    one waits for."""
    frames: list[tuple[str, str, int, int]] = []
    while coro is not None and len(frames) < _MAX_FRAMES:
        prefix = next((p for p in ("cr", "gi", "ag") if hasattr(coro, f"{p}_frame")), None)
        if prefix is None:
            return frames, name_type(type(coro))
        frame = getattr(coro, f"{prefix}_frame")
        if frame is not None:
            frames.append(_describe(frame.f_code, frame.f_lineno))
        coro = getattr(coro, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await")
    return frames, None
