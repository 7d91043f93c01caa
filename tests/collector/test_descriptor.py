"""Descriptors with an owner: closed with it, and without a complaint."""

from __future__ import annotations

import os
import warnings

from sonde.collector.descriptor import Descriptor


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_descriptor_is_closed_with_its_object_and_python_has_no_complaint() -> None:
    held = Descriptor(os.open("/dev/null", os.O_RDONLY))
    number = held.fileno()
    assert is_open(number)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del held
    assert not is_open(number) and said == []


def test_one_that_was_closed_does_not_close_what_gets_its_number_next() -> None:
    held = Descriptor(os.open("/dev/null", os.O_RDONLY))
    number = held.fileno()
    held.close()
    other = os.open("/dev/null", os.O_RDONLY)
    assert other == number and held.fileno() == -1
    held.close()
    del held
    assert is_open(other)
    os.close(other)
