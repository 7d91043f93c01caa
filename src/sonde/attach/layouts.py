"""Where the fields are in the memory of another process's Python, whichever version it is.

From 3.13 on the interpreter says so itself, in a table at the start of `_PyRuntime`. What the older
ones have is written down here; no release of theirs changed it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

Read = Callable[[int, int], bytes]  # address and size

_COOKIE = b"xdebugpy"
_WORDS = 160  # more than any of the tables has


class PythonLayout(NamedTuple):
    """Offsets of fields. Those that are None do not exist in that version."""

    interpreters_head: int
    next_interpreter: int
    threads_head: int
    next_thread: int
    thread_id: int
    native_thread_id: int | None
    current_frame: int  # in the thread's state: the frame, or what points to it
    cframe_current: int | None
    previous: int
    executable: int
    instr: int
    owner: int | None
    code_bytes: int | None  # None: `instr` is a number, and the line table is that of 3.10
    name: int
    filename: int
    linetable: int
    first_line: int
    length: int
    state: int
    ascii: int
    compact: int
    bytes_size: int
    bytes_data: int
    is_entry: int | None = None  # set in a frame that C has called, in the one version that has it
    # Without a GIL, from 3.14 on, threads run copies of a function's instructions: the number of
    # the one that a frame runs, and the list of them, in the code object.
    copy_number: int | None = None
    copies: int | None = None
    kind_bit: int = 2  # in the state of a text: where its kind begins


_FIXED = {
    (3, 10): PythonLayout(
        32, 0, 8, 8, 176, None, 24, None, 24, 32, 96, None, None, 112, 104, 120, 40,
        16, 32, 48, 72, 16, 32,
    ),
    (3, 11): PythonLayout(
        40, 0, 16, 8, 152, 160, 56, 8, 48, 32, 56, 69, 184, 128, 112, 136, 72,
        16, 32, 48, 72, 16, 32, 68,
    ),
    (3, 12): PythonLayout(
        40, 0, 72, 8, 136, 144, 56, 0, 8, 0, 56, 70, 192, 128, 112, 136, 68,
        16, 32, 40, 56, 16, 32,
    ),
}  # fmt: skip

# The table of 3.13: a line for each structure, and its fields in order, each a word of 8 bytes. A
# field with a number behind it came with that version.
_TABLE = """
table cookie version free_threaded
runtime size finalizing interpreters_head
interpreter size id next threads_head threads_main:14 gc imports sysdict builtins ceval_gil
    gil gil_enabled gil_locked gil_holder generation:14 tlbc:14
thread size prev next interp current_frame base_frame:15 profiled_frame:15 profiled_seq:15
    thread_id native_thread_id datastack status holds_gil:15 gil_requested:15 exception:15
    exc_state:15
exception value:15
frame size previous executable instr localsplus owner stackpointer:14 tlbc:14
code size filename name qualname linetable first_line argcount names kinds bytes tlbc:14
object size type
type size name repr flags basicsize:15 dictoffset:15
heaptype size:15 keys:15
tuple size item length
list size item length
set size:14 used:14 table:14 mask:14
dict size keys values
float size value
long size tag digit
bytes size length data
text size state length ascii compact:15
gc size collecting frame:15 stats_size:15 stats:15
generator size:14 name:14 frame:14 state:14
list_node next:14 prev:14
debugger eval_breaker:14 support:14 enabled:14 pending_call:14 script_path:14 script_path_size:14
"""


def find_layout(version: tuple[int, int], runtime: int, read: Read) -> PythonLayout | None:
    """Return the layout of a Python whose `_PyRuntime` is at `runtime`; None if it is unknown."""
    if version in _FIXED:
        return _FIXED[version]
    at = read_table(version, runtime, read)
    if at is None:
        return None
    has_copies = bool(at["table.free_threaded"]) and version >= (3, 14)
    ascii_size = at["text.ascii"]
    return PythonLayout(
        at["runtime.interpreters_head"], at["interpreter.next"], at["interpreter.threads_head"],
        at["thread.next"], at["thread.thread_id"], at["thread.native_thread_id"],
        at["thread.current_frame"], None, at["frame.previous"], at["frame.executable"],
        at["frame.instr"], at["frame.owner"], at["code.bytes"], at["code.qualname"],
        at["code.filename"], at["code.linetable"], at["code.first_line"], at["text.length"],
        at["text.state"], ascii_size, ascii_size + 16, at["bytes.length"], at["bytes.data"],
        copy_number=at["frame.tlbc"] if has_copies else None,
        copies=at["code.tlbc"] if has_copies else None,
        kind_bit=8 if has_copies else 2,
    )  # fmt: skip


def read_table(version: tuple[int, int], runtime: int, read: Read) -> dict[str, int] | None:
    """Return the table of a Python from 3.13 on, by "structure.field"; None if it has none."""
    data = read(runtime, 8 * _WORDS)
    if not data.startswith(_COOKIE):
        return None
    words = iter(struct.unpack(f"<{_WORDS}Q", data))
    return {name: next(words) for name in _list_fields(version[1])}


def _list_fields(minor: int) -> Iterator[str]:
    """Yield the names of the words of the table of a version, in their order."""
    for line in _TABLE.strip().replace("\n    ", " ").splitlines():
        structure, *fields = line.split()
        for field in fields:
            name, _, since = field.partition(":")
            if minor >= int(since or 0):
                yield f"{structure}.{name}"
