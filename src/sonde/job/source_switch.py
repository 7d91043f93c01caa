"""Switch a source of this process on and off, from the program itself."""

from __future__ import annotations

import os

from sonde.job.recorder import recorder
from sonde.job.source_context import SourceContext
from sonde.session.files import CONFIG, LOCK_S, Locked, read_checked, write_checked
from sonde.session.heap_look import SETTING, decline_look


def enable_torch_profiling() -> None:
    """Record PyTorch's modules and steps from now on; start a recording if there is none."""
    switch_source("torch", True)


def disable_torch_profiling() -> None:
    """Stop recording PyTorch's modules and steps; the rest of the recording continues."""
    switch_source("torch", False)


def switch_source(source: str, on: bool) -> None:
    """Switch a source on or off; start a recording if there is none to switch it on in."""
    with recorder.lock:
        if recorder.session is not None and not recorder.parked:
            SourceContext(recorder, "control").guard(_store)(f"source.{source}", on)
            recorder.match_sources()
        elif on:
            recorder.start({f"source.{source}": True})


def _store(name: str, on: bool) -> None:
    """Write the setting to the session's file, where the tool also reads and changes settings."""
    writing = recorder.session
    assert writing is not None
    path = os.path.join(writing.folder, CONFIG)
    with Locked(writing.folder, LOCK_S):  # as session/steering.py does
        write_checked(path, {**read_checked(path), name: on})
        if name == SETTING:
            decline_look(writing.folder)
    writing.values[name] = on
