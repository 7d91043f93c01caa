"""The library that unwinds machine code: libdw of elfutils, as perf and pystack use it.

It follows any registers and memory that it is given, so the thread from which they were copied need
not stand still. Only the tool loads it: from the wheel of pystack, which brings a copy for both
kinds of processor (`pip install 'sonde[native]'`), or else the system's own."""

from __future__ import annotations

import ctypes
import glob
import os
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int, c_ulong, c_void_p
from importlib.util import find_spec

from sonde import environ
from sonde.errors import Error

_NAME = "libdw.so.1"
NEXT_THREAD = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p))
GET_THREAD = CFUNCTYPE(c_bool, c_void_p, c_int, c_void_p, POINTER(c_void_p))
READ_MEMORY = CFUNCTYPE(c_bool, c_void_p, c_ulong, POINTER(c_ulong), c_void_p)
SET_REGISTERS = CFUNCTYPE(c_bool, c_void_p, c_void_p)
ON_FRAME = CFUNCTYPE(c_int, c_void_p, c_void_p)


class NoUnwinder(Error):
    """The library that unwinds machine code is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "native frames need libdw, which is not installed here: pip install 'sonde[native]', "
            "or the system's package libdw1 (Debian, Ubuntu) or elfutils-libs (Fedora, RHEL)"
        )


class DwflCallbacks(ctypes.Structure):
    """How libdw finds files."""

    _fields_ = [
        ("find_elf", c_void_p), ("find_debuginfo", c_void_p), ("section_address", c_void_p),
        ("debuginfo_path", c_void_p),
    ]  # fmt: skip


class DwflThreadCallbacks(ctypes.Structure):
    """How libdw finds threads, memory and registers."""

    _fields_ = [
        ("next_thread", NEXT_THREAD), ("get_thread", GET_THREAD), ("memory_read", READ_MEMORY),
        ("set_initial_registers", SET_REGISTERS), ("detach", c_void_p), ("thread_detach", c_void_p),
    ]  # fmt: skip


class DwarfOp(ctypes.Structure):
    """One operation of an unwind table."""

    _fields_ = [
        ("atom", ctypes.c_uint8), ("number", c_ulong), ("number2", c_ulong), ("offset", c_ulong),
    ]  # fmt: skip


# Each function: what it returns, then its arguments.
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "dwfl_begin": (c_void_p, POINTER(DwflCallbacks)),
    "dwfl_end": (None, c_void_p),
    "dwfl_report_begin": (None, c_void_p),
    "dwfl_report_elf": (c_void_p, c_void_p, c_char_p, c_char_p, c_int, c_ulong, c_bool),
    "dwfl_report_end": (c_int, c_void_p, c_void_p, c_void_p),
    "dwfl_attach_state": (
        c_bool, c_void_p, c_void_p, c_int, POINTER(DwflThreadCallbacks), c_void_p,
    ),
    "dwfl_getthread_frames": (c_int, c_void_p, c_int, ON_FRAME, c_void_p),
    "dwfl_frame_pc": (c_bool, c_void_p, POINTER(c_ulong), POINTER(c_bool)),
    "dwfl_thread_state_registers": (c_bool, c_void_p, c_int, c_int, POINTER(c_ulong)),
    "dwfl_thread_state_register_pc": (None, c_void_p, c_ulong),
    "dwfl_addrmodule": (c_void_p, c_void_p, c_ulong),
    "dwfl_module_addrname": (c_char_p, c_void_p, c_ulong),
    "dwfl_errmsg": (c_char_p, c_int),
    "dwfl_module_addrinfo": (
        c_char_p, c_void_p, c_ulong, POINTER(c_ulong), c_void_p, c_void_p, c_void_p, c_void_p,
    ),
    "dwfl_module_eh_cfi": (c_void_p, c_void_p, POINTER(c_ulong)),
    "dwfl_module_dwarf_cfi": (c_void_p, c_void_p, POINTER(c_ulong)),
    "dwarf_cfi_addrframe": (c_int, c_void_p, c_ulong, POINTER(c_void_p)),
    "dwarf_frame_info": (
        c_int, c_void_p, POINTER(c_ulong), POINTER(c_ulong), POINTER(c_bool),
    ),
    "dwarf_frame_cfa": (c_int, c_void_p, POINTER(POINTER(DwarfOp)), POINTER(c_ulong)),
    "dwarf_frame_register": (
        c_int, c_void_p, c_int, DwarfOp * 3, POINTER(POINTER(DwarfOp)), POINTER(c_ulong),
    ),
}  # fmt: skip


def load() -> ctypes.CDLL:
    """Return the library with its functions declared; NoUnwinder if there is none."""
    # A look at a job that hangs must not wait for files from the network.
    environ.forbid_debug_downloads()
    for path in (*_list_copies(), _NAME):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        return library
    raise NoUnwinder


def _list_copies() -> list[str]:
    """Return where the wheel of pystack has put its copy, without importing pystack."""
    found = find_spec("pystack")
    if found is None or found.origin is None:
        return []
    folder = os.path.dirname(os.path.dirname(found.origin))
    return glob.glob(os.path.join(glob.escape(folder), "pystack.libs", "libdw-*.so*"))


class Demangler:
    """Turns the names of C++ functions into those of their source text."""

    def __init__(self) -> None:
        self._demangle = None
        try:
            self._demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
        except (OSError, AttributeError):
            return  # without the C++ library, names stay as the linker sees them
        self._demangle.restype = c_void_p
        self._demangle.argtypes = [c_char_p, c_void_p, c_void_p, POINTER(c_int)]
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [c_void_p]

    def read(self, name: bytes) -> str:
        """Return the name as people write it; the same name if it is not of C++."""
        status = c_int(-1)
        if self._demangle is not None and name.startswith(b"_Z"):
            at = self._demangle(name, None, None, ctypes.byref(status))
            if at:
                text = ctypes.string_at(at).decode(errors="replace")
                self._free(at)
                return text
        return name.decode(errors="replace")
