"""Rows through `Writer` into a ring and back, against a model in plain Python."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sonde import _core
from sonde.errors import Damaged
from sonde.session import ring
from support.ring_memory import (
    HEAD_AT,
    INTEGERS,
    KINDS,
    SLOT_HEAD_BYTES,
    Memory,
    Row,
    as_read,
    as_stored,
    make_map,
    misfits_of,
    rows_of,
    schemas,
)

# The fixtures of conftest make a folder once per test, which is all that is needed here.
EXAMPLES = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", autouse=True)
def _hypothesis_at_work() -> None:
    # Its first example hangs a callback on gc for good, which must not look like one of ours.
    @given(st.none())
    def look(_: None) -> None: ...

    look()


# ---- what is written is what is read ----------------------------------------------------------------


@EXAMPLES
@given(st.data(), schemas(), st.sampled_from([2, 4, 16]))
def test_values_of_every_kind_come_back_exactly(
    data: st.DataObject, schema: tuple[str, str], capacity: int
) -> None:
    memory = Memory(*schema, capacity=capacity)
    try:
        rows = data.draw(st.lists(rows_of(*schema), max_size=20))
        for row in rows:
            memory.emit(*row)
        tickets, found, (lost, pending, corrupt) = memory.read()
        kept = rows[-capacity:]
        right = [
            [as_stored(kind, value) for kind, value in zip(schema[0], row, strict=True)]
            for row in kept
        ]
        assert [as_read(schema[0], row) for row in found] == right
        assert tickets == list(range(len(rows) - len(kept), len(rows)))
        assert (lost, pending, corrupt) == (len(rows) - len(kept), 0, 0)
        assert memory.count("misfit") == memory.count("dropped") == 0
    finally:
        memory.close()


# ---- spare slots -----------------------------------------------------------------------------------


@pytest.fixture
def spacious() -> Iterator[Memory]:
    memory = Memory("q", "0", capacity=64, spare=256)
    yield memory
    memory.close()


def read_numbers(memory: Memory, first: int) -> list[object]:
    tickets, rows, _missing = memory.read(first)
    assert [row[0] for row in rows] == tickets
    return tickets


def test_while_nobody_archives_a_ring_grows_and_loses_nothing(spacious: Memory) -> None:
    for number in range(64):
        spacious.emit(number)
    assert spacious.count("reach") == 64 + 256
    for number in range(64, 256 + 32):
        spacious.emit(number)
    # The first half is where it was; the other slots are taken by the rows that came later.
    assert read_numbers(spacious, 0) == list(range(256 + 32))
    for number in range(256 + 32, 1000):
        spacious.emit(number)
    assert read_numbers(spacious, 0) == list(range(1000 - 256, 1000))
    assert spacious.read(0)[2] == [1000 - 256, 0, 0]  # lost, pending, corrupt


def test_a_ring_whose_rows_are_archived_in_time_uses_no_spare_slot(spacious: Memory) -> None:
    for number in range(1000):
        spacious.emit(number)
        _core.ring_archived(spacious.map, number)
    assert spacious.count("reach") == 64
    assert read_numbers(spacious, 0) == list(range(1000 - 64, 1000))


def test_once_the_rows_are_archived_the_spare_slots_are_left(spacious: Memory) -> None:
    for number in range(100):
        spacious.emit(number)
    _core.ring_archived(spacious.map, 100)
    for number in range(100, 150):
        spacious.emit(number)
    # Rows are in both places now, and a reader finds all that were not overwritten.
    assert read_numbers(spacious, 32) == list(range(32, 150))
    assert _core.ring_settled(spacious.map, 32) == 150


def test_a_spare_that_the_file_has_no_room_for_is_refused() -> None:
    memory = Memory("q", "0", capacity=64, spare=256)
    size = os.fstat(memory.fd).st_size
    os.truncate(memory.fd, size - 4096)
    with pytest.raises(_core.Damaged):
        _core.ring_info(_core.Map(memory.fd, False))
    os.truncate(memory.fd, size)
    memory.poke(40, 512)
    with pytest.raises(_core.Damaged):
        _core.ring_info(_core.Map(memory.fd, False))
    memory.close()


def test_a_timed_row_starts_with_the_clock() -> None:
    memory = Memory("qi", "00", timed=True)
    before = _core.clock_ns()
    memory.emit(7)
    _tickets, [[t_ns, value]], _missing = memory.read()
    assert before <= t_ns <= _core.clock_ns() and value == 7
    memory.close()


# ---- values that do not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_does_not_fit_is_counted_or_raised_and_never_written(
    kind: str, strict: bool
) -> None:
    memory = Memory("q" + kind + "t", "000", strict=strict)
    misfits = misfits_of(kind)
    for value in misfits:
        if strict:
            with pytest.raises((TypeError, OverflowError)):
                memory.emit(1, value, "text")
        else:
            assert memory.emit(1, value, "text") is None
    assert memory.count("misfit") == (0 if strict else len(misfits))
    assert memory.count("head") == 0
    memory.close()


@pytest.mark.parametrize("kind", KINDS)
def test_none_does_not_fit_a_column_that_is_not_optional(kind: str) -> None:
    memory = Memory(kind, "0")
    memory.emit(None)
    assert (memory.count("misfit"), memory.count("head")) == (1, 0)
    memory.close()


class Refusal:
    """A value that cannot be had."""

    def _refuse(self) -> int:
        raise RuntimeError("no")

    __index__ = __float__ = _refuse


@pytest.mark.parametrize("kind", [*INTEGERS, "d"])
def test_an_error_of_the_value_itself_stays_inside(kind: str) -> None:
    memory, strict = Memory(kind, "0"), Memory(kind, "0", strict=True)
    memory.emit(Refusal())
    with pytest.raises(RuntimeError):
        strict.emit(Refusal())
    assert (memory.count("misfit"), memory.count("head"), strict.count("head")) == (1, 0, 0)
    memory.close()
    strict.close()


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_a_wrong_number_of_values_is_counted_or_raised(values: tuple[int, ...]) -> None:
    memory, strict = Memory("qq", "00"), Memory("qq", "00", strict=True)
    memory.emit(*values)
    with pytest.raises(TypeError):
        strict.emit(*values)
    with pytest.raises(TypeError):
        strict.emit(1, b=2)
    assert (memory.count("misfit"), memory.count("head"), strict.count("head")) == (1, 0, 0)
    memory.close()
    strict.close()


_DETACHES = """
import os
import stat
from sonde import _core
from sonde.errors import Damaged
from sonde.session import ring

def make_map(size):
    fd = os.memfd_create("x"); os.truncate(fd, size)
    return _core.Map(fd, True)

def attach():
    ring = make_map(_core.ring_bytes(8, 16, 2)); _core.ring_init(ring, 8, 16, b"{}")
    texts = make_map(_core.intern_bytes(8, 64)); _core.intern_init(texts, 8, 64)
    emit.attach(ring, _core.Text(texts))

class Sneak:
    def __init__(self, fails): self.fails = fails
    def __index__(self):
        emit.detach()
        if self.fails: raise ValueError
        return 1

emit = _core.Writer("qt", "00")
"""


@pytest.mark.parametrize("call", ['emit(Sneak(False), "text")', 'emit(Sneak(True), "text")'])
def test_a_recording_may_stop_while_a_value_is_taken(
    run: Callable[..., subprocess.CompletedProcess[str]], call: str
) -> None:
    # A tensor's __float__ lets other threads run; one of them may call sonde.stop().
    run(f"{_DETACHES}\nfor _ in range(3):\n    attach()\n    {call}\n")


# ---- against the model ------------------------------------------------------------------------------------


class RingMachine(RuleBasedStateMachine):
    """Appends, deaths, damage, healing and reads, each also done to a list of slots."""

    @initialize(capacity=st.sampled_from([2, 4, 8]))
    def open(self, capacity: int) -> None:
        self.memory = Memory("qt?d", "0101", capacity=capacity)
        self.capacity, self.head, self.dropped = capacity, 0, 0
        self.marks = [0] * capacity
        self.slots: list[Row] = [[] for _ in range(capacity)]
        self.sound: list[bool | None] = [True] * capacity  # None: never was

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()

    @rule(row=rows_of("qt?d", "0101"))
    def append(self, row: tuple[object, ...]) -> None:
        self.memory.emit(*row)
        index, done = self.head % self.capacity, 2 * (self.head + 1)
        self.head += 1
        if self.marks[index] & 1 or self.marks[index] >= done:
            self.dropped += 1
            return
        stored = [as_stored(kind, value) for kind, value in zip("qt?d", row, strict=True)]
        self.marks[index], self.slots[index], self.sound[index] = done, stored, True

    @rule()
    def die_in_the_middle(self) -> None:
        index, busy = self.head % self.capacity, 2 * (self.head + 1) - 1
        if self.marks[index] & 1:
            return  # such a writer drops its row and never gets to the middle
        self.head += 1
        self.memory.poke(HEAD_AT, self.head)
        self.memory.poke(self.memory.slot_at(index), busy)
        self.marks[index] = busy

    @rule()
    def sleep_until_overtaken(self) -> None:
        # The next writer has its ticket, and wakes up when a later row is in its slot.
        index, later = self.head % self.capacity, 2 * (self.head + self.capacity + 1)
        self.memory.poke(self.memory.slot_at(index), later)
        self.marks[index], self.sound[index] = later, None

    @rule(index=st.integers(0, 7))
    def damage(self, index: int) -> None:
        index %= self.capacity
        at = self.memory.slot_at(index) + SLOT_HEAD_BYTES
        self.memory.poke(at, self.memory.peek(at) ^ 1)
        self.sound[index] = None if self.sound[index] is None else not self.sound[index]

    @rule()
    def heal(self) -> None:
        _core.ring_free_slots(self.memory.map)
        self.marks = [0 if mark & 1 else mark for mark in self.marks]

    @rule(first=st.integers(0, 60), length=st.integers(0, 60) | st.just(2**62))
    def read(self, first: int, length: int) -> None:
        last = max(first, min(first + length, self.head))
        start = max(first, last - self.capacity)
        right: list[Row] = []
        tickets, counts = [], [start - first, 0, 0]
        for ticket in range(start, last):
            mark, done = self.marks[ticket % self.capacity], 2 * (ticket + 1)
            if mark != done:
                counts[0 if mark > done else 1] += 1
            elif self.sound[ticket % self.capacity]:
                right.append(self.slots[ticket % self.capacity])
                tickets.append(ticket)
            else:
                counts[2] += 1
        found_tickets, found, missing = self.memory.read(first, first + length)
        assert [as_read("qt?d", row) for row in found] == right
        assert (found_tickets, missing) == (tickets, counts)

    @rule(first=st.integers(0, 60))
    def settle(self, first: int) -> None:
        start = max(min(first, self.head), self.head - self.capacity)
        open_tickets = [
            ticket
            for ticket in range(start, self.head)
            if self.marks[ticket % self.capacity] < 2 * (ticket + 1)
        ]
        assert _core.ring_settled(self.memory.map, first) == min([*open_tickets, self.head])

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "memory"):
            assert self.memory.count("head") == self.head
            assert self.memory.count("dropped") == self.dropped


RingMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
test_a_ring_does_what_its_model_does = RingMachine.TestCase


# ---- texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [{"texts": 2}, {"text_bytes": 3}])
def test_a_text_for_which_there_is_no_room_is_null_and_counted(room: dict[str, int]) -> None:
    memory = Memory("tt", "01", **room)
    for text in ("a", "b", "too much", "a"):
        memory.emit(text, text)
    _tickets, rows, _missing = memory.read()
    assert rows == [[b"a", b"a"], [b"b", b"b"], [None, None], [b"a", b"a"]]
    assert memory.count("text_lost") == 2
    assert _core.intern_read(memory.text_map)[1] == 2
    memory.close()


def test_a_text_has_one_number_however_it_was_made() -> None:
    memory = Memory("t", "0")
    text = _core.Text(memory.text_map)
    first = text.put("train step")
    # Another object, another cache: the table itself must find it.
    assert _core.Text(memory.text_map).put("".join(["train", " ", "step"])) == first
    assert text.put("train step 2") == first + 1
    memory.close()


# ---- what is not a ring -----------------------------------------------------------------------------------------


def _open_odd(kind: str, folder: Path) -> int:
    path = folder / "odd"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(b"x" * {"empty": 0, "small": 63}[kind])
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("kind", ["empty", "small", "folder", "fifo"])
def test_a_file_that_cannot_be_ours_is_not_mapped(kind: str, tmp_path: Path) -> None:
    fd = _open_odd(kind, tmp_path)
    with pytest.raises(_core.Damaged):
        _core.Map(fd)
    os.close(fd)


@pytest.mark.parametrize("size", [64, 255, 256, 4096, 100_000])
@pytest.mark.parametrize("ask", [_core.ring_info, _core.intern_read, _core.ring_free_slots])
def test_a_file_of_zeros_is_damaged(ask: Callable[[_core.Map], object], size: int) -> None:
    memory, fd = make_map(size)
    os.close(fd)
    with pytest.raises(_core.Damaged):
        ask(memory)


def test_a_ring_of_a_newer_version_says_so() -> None:
    memory = Memory("q", "0")
    memory.poke(8, memory.peek(8) + 1)
    with pytest.raises(_core.Newer):
        _core.ring_info(memory.map)
    memory.close()


def test_a_ring_is_not_read_with_another_shape() -> None:
    memory = Memory("qq", "00")
    with pytest.raises(_core.Damaged):
        _core.ring_read(memory.map, "q", "0", 0, 1)
    with pytest.raises(ValueError):
        _core.Writer("q", "0").attach(memory.map, _core.Text(memory.text_map))
    memory.close()


@pytest.mark.parametrize(
    ("kinds", "optional"),
    [("", ""), ("x", "0"), ("q", ""), ("q" * 65, "0" * 65), ("q" * 33, "1" * 33)],
)
def test_a_row_that_cannot_be_laid_out_is_refused(kinds: str, optional: str) -> None:
    with pytest.raises(ValueError):
        _core.Writer(kinds, optional)


@pytest.mark.parametrize("kind", ("link", "folder", "socket"))
def test_what_is_in_the_place_of_a_ring_is_damage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.ring"
    if kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    with pytest.raises(Damaged, match=r"is not a file of sonde|is truncated"):
        ring.Ring(str(path))
