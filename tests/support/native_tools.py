"""Libraries that are built here: tools that write down what ITT and NVTX tell them, and a device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.places import NATIVE

_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-shared", "-fPIC")


class Tool:
    """A library that a program is told to load, and what it was told by it."""

    def __init__(self, folder: Path, name: str, variable: str) -> None:
        self.path, self._log, self._variable = _build(folder, name), folder / "log", variable

    @property
    def env(self) -> dict[str, str]:
        """The environment in which a program finds it."""
        return {self._variable: str(self.path), "LISTENER_LOG": str(self._log)}

    def read(self) -> list[tuple[str, ...]]:
        """All calls, in their order: what, and what was said."""
        return [tuple(words[1:]) for words in self._read()]

    def read_threads(self) -> dict[str, list[tuple[str, ...]]]:
        """The same by thread."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for thread, *words in self._read():
            found.setdefault(thread, []).append(tuple(words))
        return found

    def _read(self) -> list[list[str]]:
        if not self._log.exists():
            return []
        return [line.split("\t") for line in self._log.read_text().split("\n")[:-1]]


def _build(folder: Path, name: str, soname: str | None = None, flags: tuple[str, ...] = ()) -> Path:
    path, source = folder / (soname or f"lib{name}.so"), NATIVE / f"{name}.c"
    command = [os.environ.get("CC", "cc"), *_FLAGS, "-o", str(path), str(source), "-ldl", *flags]
    command += [f"-Wl,-soname,{soname}"] if soname else []
    subprocess.run(command, check=True, capture_output=True)
    return path


def make_device(folder: Path) -> Path:
    """In place of CUDA's runtime, a device that works as long as it is told to."""
    return _build(folder, "pretend_device")


def make_library_that_allocates(folder: Path, *flags: str) -> Path:
    """A library that asks the C library for memory in every way."""
    return _build(folder, "library_that_allocates", flags=flags)


def make_library_that_loads_slowly(folder: Path) -> Path:
    """A library that asks the C library for memory, and is half loaded for half a second."""
    slow = _build(folder, "slow_to_load", "libslow_to_load.so")
    flags = ("-Wl,-z,lazy,-z,relro,--no-as-needed", str(slow), f"-Wl,-rpath,{folder}")
    return _build(folder, "library_that_allocates", flags=flags)


def make_driver(folder: Path) -> Path:
    """In place of CUDA's driver and NCCL's flight recorder; both note what they are asked."""
    return _build(folder, "pretend_driver", "libcuda.so.1")


def forbid_file(folder: Path, end: str) -> dict[str, str]:
    """Return an environment in which a program may not open its own files of /proc that end so."""
    return {"LD_PRELOAD": str(_build(folder, "forbidden_file")), "FORBIDDEN_FILE": end}


def make_endless_calls(folder: Path) -> Path:
    """A function that calls itself until its stack has run over."""
    return _build(folder, "endless_calls", flags=("-O1", "-Wno-infinite-recursion"))


def make_aligned_stack(folder: Path) -> Path:
    """Functions that align their stack."""
    return _build(folder, "aligned_stack")


def make_allocating_chain(folder: Path) -> Path:
    """Functions that allocate, each called by another."""
    return _build(folder, "allocating_chain")


def make_vfork_fault(folder: Path) -> Path:
    """A child by vfork() that ends by SIGBUS."""
    return _build(folder, "vfork_fault")


def make_moved_loop(folder: Path) -> Path:
    """The interpreter's loop with a part that lies elsewhere and has no name."""
    path = _build(folder, "moved_loop")
    subprocess.run(["strip", str(path)], check=True, capture_output=True)
    return path


def make_slow_reads(folder: Path) -> Path:
    """To be preloaded: readings of stacks pause in the middle, as on a machine that is too busy."""
    return _build(folder, "slow_reads")


def make_itt(folder: Path) -> Tool:
    """A collector, as VTune is one."""
    return Tool(folder, "itt_collector", "INTEL_LIBITTNOTIFY64")


def make_nvtx(folder: Path) -> Tool:
    """A tool, as Nsight Systems is one."""
    return Tool(folder, "nvtx_injection", "NVTX_INJECTION64_PATH")
