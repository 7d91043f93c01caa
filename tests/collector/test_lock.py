"""The lock of the collector: one for a host and a root folder, whatever becomes of the folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from sonde.collector import loop
from sonde.collector.lock import is_replaced, take_lock, write_lock


def test_a_second_collector_gives_way(root: Path) -> None:
    root.mkdir(mode=0o700)
    held = take_lock(str(root))
    assert held is not None
    code = "from sonde.collector.loop import main; main()"
    arguments = [str(root / "no session"), str(root)]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=240)
    os.close(held)


def test_a_collector_leaves_when_its_root_was_removed_and_made_anew(root: Path) -> None:
    root.mkdir(mode=0o700)
    lock = take_lock(str(root))
    assert lock is not None
    write_lock(lock, None)
    one = loop.Collector(str(root), lock=lock)
    one.step(0.0)
    assert not one.leaving
    shutil.rmtree(root)
    root.mkdir(mode=0o700)  # by a job that begins before the collector looks again
    one.step(2.0)
    assert not one.leaving  # nobody has taken its place yet
    other = take_lock(str(root))
    assert other is not None
    one.step(4.0)
    assert one.leaving
    os.close(lock)
    os.close(other)


def test_a_file_system_without_lasting_inode_numbers_is_no_reason_to_leave(root: Path) -> None:
    root.mkdir(mode=0o700)
    lock = take_lock(str(root))
    assert lock is not None
    write_lock(lock, None)
    (path,) = root.glob(".collector-*.lock")
    path.write_bytes(path.rename(root / "before").read_bytes())  # the same words in another inode
    assert not is_replaced(lock, str(root))
    path.write_text("1\n")
    assert is_replaced(lock, str(root))
    os.close(lock)
