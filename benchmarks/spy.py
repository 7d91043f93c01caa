"""Samplers that look at a process from outside: py-spy and austin."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import child

NAMES = ("py-spy", "austin")
ATTACH_S = 20.0


def find(name: str) -> Path | None:
    """The program, installed beside this Python; None if it is not."""
    path = Path(sys.executable).with_name(name)
    return path if path.exists() else None


@contextmanager
def attach(
    name: str, pid: int, rate_hz: int, output: Path, *more: str
) -> Iterator[subprocess.Popen]:
    """The sampler while it samples; what it found is in `output` afterwards."""
    output.unlink(missing_ok=True)
    log = output.with_suffix(".log")
    if name == "py-spy":
        options = ["record", "-r", str(rate_hz), "-f", "raw", "-o", str(output), "-p", str(pid)]
    else:
        options = ["-i", f"{1_000_000 // rate_hz}us", "-o", str(output), "-p", str(pid)]
    with log.open("wb") as file:
        process = subprocess.Popen([str(find(name)), *options, *more], stdout=file, stderr=file)
    try:
        child.wait_until(lambda: _is_sampling(name, output, log), ATTACH_S, f"{name} sampling")
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ATTACH_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_sampling(name: str, output: Path, log: Path) -> bool:
    if name == "py-spy":
        return b"Sampling process" in log.read_bytes()
    return output.exists() and output.stat().st_size > 100


def read_stacks(name: str, output: Path) -> list[tuple[list[str], float]]:
    """Stacks as the names of their functions, and how many samples, or how much time, each is."""
    if name == "py-spy":
        return _read_raw(output.read_text())
    return list(_read_mojo(output.read_bytes()))


def _read_raw(text: str) -> list[tuple[list[str], float]]:
    found = []
    for line in text.splitlines():
        stack, _space, count = line.rpartition(" ")
        found.append(([re.sub(r" \(.*\)$", "", frame) for frame in stack.split(";")], int(count)))
    return found


# ---- austin's own format -----------------------------------------------------------------------

# What follows each kind of event: numbers and texts.
_META, _STACK, _FRAME, _FRAME_REF, _TIME, _TEXT = 1, 2, 3, 5, 9, 11
_FIELDS = {_META: "tt", _STACK: "nnt", _FRAME: "nnnnnnn", 4: "", _FRAME_REF: "n", 6: "t", 7: "",
           8: "", _TIME: "n", 10: "n", _TEXT: "nt"}  # fmt: skip


class _Mojo:
    """Reads numbers and texts one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4  # behind "MOJ" and the version

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        byte = self.byte()
        value, shift, is_negative = byte & 0x3F, 6, byte & 0x40
        while byte & 0x80:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
        return -value if is_negative else value

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise IndexError
        found = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return found


def _read_events(data: bytes) -> Iterator[tuple[int, list]]:
    mojo = _Mojo(data)
    while mojo.at < len(data):
        try:
            event = mojo.byte()
            values = [mojo.number() if kind == "n" else mojo.text() for kind in _FIELDS[event]]
        except IndexError:
            return  # it was ended in the middle of an event
        yield event, values


def _read_mojo(data: bytes) -> Iterator[tuple[list[str], float]]:
    texts: dict[int, str] = {}
    frames: dict[int, str] = {}
    stack: list[str] = []
    for event, values in _read_events(data):
        if event == _TEXT:
            texts[values[0]] = values[1]
        elif event == _STACK:
            stack = []
        elif event == _FRAME:
            frames[values[0]] = texts.get(values[2], "?")
        elif event == _TIME:
            yield stack, values[0]
        if event in (_FRAME, _FRAME_REF):
            stack.append(frames[values[0]])
