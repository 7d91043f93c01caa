"""PyTorch's profiling, on and off from the program and from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.session import Session, list_sessions

TORCH = "SELECT state, detail FROM sonde.source_log WHERE source = 'torch' ORDER BY t_ns"


def only(root: Path) -> Session:
    (session,) = list_sessions(str(root))
    return session


def list_states(session: Session) -> list[str]:
    rows = sonde.open(session.folder).query(TORCH).to_pylist()
    # Why a source failed is worth more than that it did.
    return [row["detail"] if row["state"] == "failed" else row["state"] for row in rows]


def test_enabling_starts_a_recording(root: Path) -> None:
    sonde.enable_torch_profiling()
    assert list_states(only(root)) == ["on"]


def test_it_is_switched_while_the_recording_goes_on(root: Path) -> None:
    sonde.start(collector="off")
    sonde.disable_torch_profiling()
    sonde.disable_torch_profiling()
    session = only(root)
    assert session.read_config()["source.torch"] is False
    sonde.enable_torch_profiling()
    assert session.read_config()["source.torch"] is True
    assert list_states(session) == ["on", "off", "on"] and session.find_state() == "running"


def test_disabling_without_a_recording_is_nothing(root: Path) -> None:
    sonde.disable_torch_profiling()
    assert list(list_sessions(str(root))) == []


@pytest.mark.parametrize(
    ("env", "states"),
    [
        ({"SONDE_TORCH_PROFILING": "on"}, ["on", "off"]),
        ({"SONDE_TORCH_PROFILING": "off", "SONDE": "1"}, []),
        ({"SONDE_TORCH_PROFILING": "off"}, None),
        ({"SONDE_TORCH_PROFILING": "on", "SONDE": "0"}, None),
        ({"SONDE_TORCH_PROFILING": "on", "SONDE_TORCH_COMPILE": "0"}, ["on", "off"]),
        ({"SONDE_TORCH_PROFILING": "on", "SONDE_SOURCE_TORCH": "off"}, []),
    ],
)
def test_the_environment_switches_it(run, root: Path, env, states) -> None:
    run("pass", SONDE_COLLECTOR="off", **env)
    found = [list_states(session) for session in list_sessions(str(root))]
    assert found == ([] if states is None else [states])
