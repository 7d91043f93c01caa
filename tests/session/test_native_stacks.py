"""Native stacks of a fault stand in the places that Python's frames leave."""

from __future__ import annotations

import os
import shutil

import pytest

from sonde.errors import Damaged
from sonde.session import Session
from sonde.session.crash_file import CrashFile
from sonde.session.native_stacks import NAME, StacksAtFault, ThreadAtFault, add_native_frames
from sonde.session.stack_table import StackFrame, ThreadStack

LIBRARY = "/lib/libfast.so"
FAULT_NS = 5_000_000_000
ENDED = os.path.join(os.path.dirname(__file__), "..", "golden", "ended")


@pytest.fixture
def session(tmp_path) -> Session:
    folder = str(tmp_path / "ended")
    shutil.copytree(ENDED, folder)
    outer = ("callback", LIBRARY, 0), ("", "", 2)
    frames = [("sort", LIBRARY, 0), ("", "", 1), *outer]
    bare = [("work", LIBRARY, 0), ("start_thread", "/lib/libc.so.6", 0)]
    StacksAtFault(
        t_ns=FAULT_NS,
        notes=["a note"],
        threads=[
            ThreadAtFault(thread=7, waits=False, depth=3, frames=frames),
            ThreadAtFault(thread=9, waits=True, depth=0, frames=bare),
        ],
    ).write(os.path.join(folder, NAME))
    return Session(folder)


def make_thread(number: int, t_ns: int, *funcs: str) -> ThreadStack:
    one = ThreadStack(number, None, t_ns)
    one.frames = [StackFrame(func, "shop.py", 3, 1) for func in funcs]
    return one


def list_funcs(one: ThreadStack) -> list[str]:
    return [frame.func for frame in one.frames]


def test_native_frames_stand_where_they_were_and_threads_of_c_are_added(session: Session) -> None:
    inner = StackFrame("sort_of_a_sample", LIBRARY, 0, 0)  # of stack.native: it is there already
    main = make_thread(7, FAULT_NS + 1000, "price", "total", "main")
    main.frames.insert(0, inner)
    one, other = add_native_frames([main], session)
    assert list_funcs(one) == ["sort", "price", "callback", "total", "main"]
    assert [frame.is_native for frame in one.frames] == [True, False, True, False, False]
    assert (other.thread, other.idle, list_funcs(other)) == (9, True, ["work", "start_thread"])


def test_frames_beyond_the_deepest_that_are_recorded_stay_last(session: Session) -> None:
    main = make_thread(7, FAULT_NS, "price", "total", "main", "<cut>")
    assert list_funcs(add_native_frames([main], session)[0])[-3:] == ["total", "main", "<cut>"]


@pytest.mark.parametrize(
    ("t_ns", "funcs"),
    [(FAULT_NS - 1, ["price", "total", "main"]), (FAULT_NS, ["total", "main"])],
)
def test_a_stack_that_was_not_seen_with_its_native_frames_is_left_alone(
    session: Session, t_ns: int, funcs: list[str]
) -> None:
    one, _ = add_native_frames([make_thread(7, t_ns, *funcs)], session)
    assert list_funcs(one) == funcs


def test_a_program_that_went_on_after_the_fault_has_the_stacks_of_its_end(session: Session) -> None:
    end = make_thread(7, FAULT_NS + 60_000_000_000, "price", "total", "main")
    (one,) = add_native_frames([end], session)
    assert list_funcs(one) == ["price", "total", "main"]


def test_what_a_program_wrote_until_it_ended_is_read(tmp_path) -> None:
    path = tmp_path / "crash.stacks"
    head = b"soncrash" + (1).to_bytes(4, "little") + bytes(4) + (5).to_bytes(8, "little") * 2
    words = b"".join(number.to_bytes(8, "little") for number in (9, 0x1000, 0x7F00))
    counts = b"".join(number.to_bytes(4, "little") for number in (1, 7, 1, 2, 3, 0))
    thread = words + counts + (0x7F00).to_bytes(8, "little") + bytes([1, 0, 0, 0, 3, 0, 0, 0])
    whole = head + b"".join(
        kind.to_bytes(4, "little") + len(part).to_bytes(4, "little") + part
        for kind, part in ((1, b"first line\nhalf"), (2, thread + b"stack"), (2, thread + b"more"))
    )
    path.write_bytes(whole[:-1])  # it was ended while it wrote the last one
    found = CrashFile(str(path))
    (one,) = found.threads
    assert (found.t_ns, found.thread, found.maps) == (5, 5, b"first line\n")
    assert (one.tid, one.pc, one.sp, one.first, one.registers) == (9, 0x1000, 0x7F00, 7, [0x7F00])
    assert (one.ends, one.depth, one.stack) == ([1, 3], 3, b"stack")
    path.write_bytes(whole[:20])
    with pytest.raises(Damaged):
        CrashFile(str(path))
