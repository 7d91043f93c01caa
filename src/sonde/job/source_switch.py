"""Switch a source of this process on and off, from the program itself."""

from __future__ import annotations

import fcntl
import os

from sonde.job.recorder import recorder
from sonde.job.source_context import SourceContext
from sonde.session.files import CONFIG, read_checked, write_checked


def enable_torch_profiling() -> None:
    """Record PyTorch's modules and steps from now on; starts the recording if there is none."""
    _switch("torch", True)


def disable_torch_profiling() -> None:
    """Record them no more; the rest of the recording goes on."""
    _switch("torch", False)


def _switch(source: str, on: bool) -> None:
    with recorder.lock:
        if recorder.session is not None and not recorder.parked:
            SourceContext(recorder, "control").guard(_store)(f"source.{source}", on)
            recorder.match_sources()
        elif on:
            recorder.start({f"source.{source}": True})


def _store(name: str, on: bool) -> None:
    """Settings are a file: there the tool sees what is in force, and changes it, too."""
    writing = recorder.session
    assert writing is not None
    path = os.path.join(writing.folder, CONFIG)
    fd = os.open(writing.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # as control.py does
        write_checked(path, {**read_checked(path), name: on})
    finally:
        os.close(fd)
    writing.values[name] = on
