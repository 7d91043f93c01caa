"""The slot through which a library calls its own function: taken, and given back, however it was linked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.places import CORE, NATIVE

PARTS = (NATIVE / "slot_taker.c", CORE / "kernel/linkage_slot.c", CORE / "kernel/sealed_word.c")


def compile_c(*arguments: object) -> None:
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-Wall", "-Werror"]
    subprocess.run([*command, *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def taker(tmp_path_factory) -> Path:
    """A program that takes the slot of a library twice, and gives it back."""
    path = tmp_path_factory.mktemp("taker") / "taker"
    compile_c(f"-I{CORE}", "-o", path, *PARTS, "-ldl")
    return path


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        (("-fplt", "-Wl,-z,lazy", "-Wl,-z,relro"), "writable"),  # torch for x86_64
        (("-fplt", "-Wl,-z,now", "-Wl,-z,relro"), "sealed"),  # conda's
        (("-fno-plt", "-Wl,-z,now", "-Wl,-z,relro"), "sealed"),  # torch 2.15 for aarch64
        (("-fno-plt", "-Wl,-z,norelro"), "writable"),
        (("-Wl,-Bsymbolic",), None),  # a call without a slot
    ],
)
def test_a_slot_is_taken_and_given_back_and_stays_as_the_loader_left_it(
    taker: Path, tmp_path: Path, flags: tuple[str, ...], kept: str | None
) -> None:
    library = tmp_path / "library.so"
    compile_c("-shared", "-fPIC", "-fno-inline", "-fsemantic-interposition", *flags, "-o", library,
              NATIVE / "slot_library.c")  # fmt: skip
    done = subprocess.run([taker, library], check=True, capture_output=True, text=True)
    taken_and_back = ["0", f"1020 {kept}", f"20 {kept}"]
    assert done.stdout.split("\n")[:-1] == (taken_and_back * 2 if kept else ["no slot"])
