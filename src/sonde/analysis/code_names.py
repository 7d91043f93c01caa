"""Whose code a frame is, and what people call it: mine, a library's, Python's own, or sonde's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import lru_cache
from typing import Protocol, TypeVar

from sonde.words import OURS, PACKAGES, STANDARD
from sonde.words import shorten_file as shorten_file  # noqa: PLC0414  # its users look here

MANY_CALLERS = 5  # frames of libraries before the user's own code, that are told as one
IMPORTER = "<frozen importlib"  # how the files of Python's import system begin
MINE, LIBRARY, PYTHON, SONDE = "mine", "library", "python", "sonde"
# Functions of libraries that only call what they wrap.
WRAPPERS = ("wrapper", "inner", "wrapped", "_call_impl", "_wrapped_call_impl", "__call__",
            "decorate_context", "_fn")  # fmt: skip

# What runs before any program does: nobody asks for it.
_AROUND = ("threading", "runpy", "_pyrepl", "asyncio.threads", "concurrent.futures.thread",
           "multiprocessing.", "torch.distributed.run", "torch.distributed.launcher",
           "torch.distributed.elastic.")  # fmt: skip

_OURS, _PACKAGES, _STANDARD = (re.compile(each) for each in (OURS, PACKAGES, STANDARD))
_LAUNCHER = re.compile(r".*/bin/[^/.]+$")  # torchrun, gunicorn: a few lines that pip wrote
_NATIVE = re.compile(r".*\.so(?:\.[\w.]+)?$|.*/bin/python[\d.]+[a-z]*$|<memory>$")
_FROZEN = re.compile(r"<frozen ([\w.]+)>")


def find_owner(file: str, mine: Sequence[str] = ()) -> str:
    """Return whose code a file is; what fits one of the patterns `mine` is the user's own."""
    if any(fnmatch(file, pattern) for pattern in mine):
        return MINE
    if _OURS.match(file):
        return SONDE
    if _PACKAGES.match(file) or _LAUNCHER.match(file) or _NATIVE.match(file):
        return LIBRARY
    if _FROZEN.match(file) or _STANDARD.match(file):
        return PYTHON
    return MINE


@lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    """Return whether a file is part of sonde: its frames are shown to nobody."""
    return find_owner(file) == SONDE


@lru_cache(maxsize=4096)
def is_mine(file: str) -> bool:
    """Return whether a file is the user's own code, as far as its name tells."""
    return find_owner(file) == MINE


def name_module(file: str) -> str:
    """Return the name that a file is imported by: `numpy.linalg` for numpy/linalg/__init__.py; of
    what `python -m gunicorn` runs, `gunicorn`."""
    frozen = _FROZEN.match(file)
    if frozen is not None:
        return frozen[1]
    if _LAUNCHER.match(file):
        return file.rpartition("/")[2]
    path = shorten_file(file)
    name = path.removesuffix(".py").removesuffix("/__init__").removesuffix("/__main__")
    name = name.replace("/", ".")
    return name.rpartition(".")[2] if find_owner(file) == MINE else name


def is_around(module: str) -> bool:
    """Return whether a module only runs what the user has written: `runpy`, a thread's start."""
    return any(
        module == name or (name.endswith(".") and module.startswith(name)) for name in _AROUND
    )


def count_start(files: Sequence[str]) -> int:
    """Return how many of the outermost frames of a stack, whose files are given root first, only
    run the program; none if there is nothing else."""
    count = 0
    while count < len(files) and _is_start(files, count):
        count += 1
    return count if count < len(files) else 0


def _is_start(files: Sequence[str], at: int) -> bool:
    if files[at] == "<string>":  # what multiprocessing gives to `python -c`
        return at + 1 < len(files) and name_module(files[at + 1]).startswith("multiprocessing.")
    owner = find_owner(files[at])
    return owner == SONDE or (owner != MINE and is_around(name_module(files[at])))


class _Named(Protocol):
    @property
    def func(self) -> str: ...
    @property
    def file(self) -> str: ...


_F = TypeVar("_F", bound=_Named)


def skip_start(frames: Sequence[_F]) -> Sequence[_F]:
    """Return a stack, root first, without the line that multiprocessing gives to `python -c` to
    start a process, which is nobody's own code, and without what the parent of a forked worker did
    when it started it."""
    is_given = len(frames) > 1 and frames[0].file == "<string>"
    if is_given and name_module(frames[1].file).startswith("multiprocessing."):
        return frames[1:]
    for at in range(len(frames) - 1, 0, -1):
        if is_child_start(frames[at].func, frames[at].file):
            return frames[at:]
    return frames


def cut_our_imports(frames: Sequence[_F]) -> Sequence[_F]:
    """Return a stack, root first, without what a frame of ours imports: no program asked for it."""
    for at in range(len(frames) - 1):
        if is_ours(frames[at].file) and frames[at + 1].file.startswith(IMPORTER):
            return frames if any(is_mine(one.file) for one in frames[at:]) else frames[: at + 1]
    return frames


def is_child_start(func: str, file: str) -> bool:
    """Return whether this is what a process of multiprocessing begins with. What calls it is, in a
    forked one, the stack of its parent."""
    return func.endswith("_bootstrap") and file.endswith("/multiprocessing/process.py")


_OPERATORS = {
    "__contains__": "in", "__getitem__": "[]", "__setitem__": "[] =", "__delitem__": "del []",
    "__add__": "+", "__iadd__": "+=", "__sub__": "-", "__isub__": "-=", "__mul__": "*",
    "__imul__": "*=", "__truediv__": "/", "__itruediv__": "/=", "__matmul__": "@",
}  # fmt: skip


def name_c_call(call: str) -> str:
    """Return a C function as people write it: `pickle.dumps` for `_pickle.dumps`, `os.fsync` for
    `posix.fsync`, `sorted` for `builtins.sorted`, `in (list)` for `list.__contains__`, and
    `+ (str)` for `str.__add__`."""
    owner, _, func = call.rpartition(".")
    if func in _OPERATORS:
        return f"{_OPERATORS[func]} ({owner})"
    if owner in ("builtins", "posix"):
        return func if owner == "builtins" else f"os.{func}"
    return call.lstrip("_")


_TORCH = re.compile(
    r"torch\._C\.(?:_VariableFunctionsClass|(TensorBase)|_nn|_(linalg|fft|special)(?=\.\2_))\."
    r"(?:\2_)?(.+)"
)
OPERATORS = "operators of arrays"


def show_call(call: str) -> str:
    """Return the name of a C function of torch as people write it: `torch.tensor` for
    `torch._C._VariableFunctionsClass.tensor`, `torch.Tensor.abs` for `torch._C.TensorBase.abs`."""
    found = _TORCH.fullmatch(call)
    if found is None:
        return call
    part = "Tensor." if found[1] else f"{found[2]}." if found[2] else ""
    return f"torch.{part}{found[3]}"


def name_call(func: str, file: str) -> str:
    """Return a function of a library as its callers write it: `json.dumps`, `pandas.read_csv`."""
    module = name_module(file)
    package = module.partition(".")[0]
    if func == "<module>":
        return module
    if module == "torch._tensor" and func.endswith(".wrapped"):
        return OPERATORS  # `**`, `//` and those with the tensor on the right, whose frame this is
    # A module that is private or deep inside a package is not what the caller wrote.
    func = func.rpartition("<locals>.")[2]
    if func.endswith(("._wrapped_call_impl", "._call_impl")):  # of torch: how a module is called
        func = func.rpartition(".")[0] + ".__call__"
    return f"{package}.{func}" if package else func
