"""Made the folders beside this file, once: `python make.py FOLDER`. They are never made again:
a folder of today must be readable for ever."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import sonde
from sonde import environ
from sonde.collector import loop
from sonde.session import Session
from sonde.session.files import read_checked, write_checked


class Sample:
    """Every kind of column."""

    a: sonde.i8
    b: sonde.i16
    c: sonde.i32
    d: sonde.i64
    e: sonde.u8
    f: sonde.u16
    g: sonde.u32
    h: sonde.u64
    i: sonde.f64 | None
    j: bool
    k: sonde.text | None


def rows() -> list[tuple[object, ...]]:
    low = (-(2**7), -(2**15), -(2**31), -(2**63), 0, 0, 0, 0, -0.5, False, "first")
    high = (
        2**7 - 1,
        2**15 - 1,
        2**31 - 1,
        2**63 - 1,
        2**8 - 1,
        2**16 - 1,
        2**32 - 1,
        2**64 - 1,
        1e300,
        True,
        "é🦀",
    )
    return [low, high, (0,) * 8 + (None, True, None)]  # fmt: skip


def record() -> str:
    emit = sonde.table(Sample, "job.sample")
    folder = sonde.start(collector="off", ring_bytes="4KiB", text_bytes="4KiB")
    for row in rows():
        emit(*row)
    sonde.stop()
    assert folder
    return folder


def rename(folder: Path) -> None:
    meta = read_checked(str(folder / "meta.json"))
    meta.update(
        id=folder.name, host="golden", argv=["python", "train.py"], cwd="/", executable="python"
    )
    write_checked(str(folder / "meta.json"), meta)


def main(to: Path) -> None:
    os.environ["SONDE_DIR"] = str(to / "work")
    for name in ("v1-rings", "v1-sealed"):
        folder = record()
        if name == "v1-sealed":
            loop.Collector(environ.find_root()).step(0.0)
            assert Session(folder).read_sealed()
        shutil.copytree(folder, to / name)
        rename(to / name)
    shutil.rmtree(to / "work")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
