"""The agent that the collector starts: `SONDE_AGENT` is all that a job needs."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from conftest import wait_for
from sonde.errors import ConfigError
from sonde.launch import agent_report
from sonde.settings import read_values

PROGRAM = """
import sonde, time
sonde.start()
print("ready", flush=True)
while True: time.sleep(0.01)
"""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_a_job_that_asks_for_an_agent_is_answered_for_while_it_runs(
    start, root: Path, tmp_path: Path, monkeypatch, sonde_cli
) -> None:
    monkeypatch.setenv("SONDE_FLEET", str(tmp_path / "fleet"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start(PROGRAM, SONDE_AGENT=address)
        report = Path(agent_report(str(root)))
        wait_for(lambda: report.exists() and "cannot be listened on" in report.read_text(), 120)
    # It is tried again, and then answers.
    words = ("query", f"{process.pid}@hosts:{address}", "SELECT pid FROM sonde.session")
    wait_for(lambda: str(process.pid) in sonde_cli(*words).stdout, 120)
    process.kill()
    process.wait()
    wait_for(lambda: "nobody listens there" in sonde_cli(*words).stderr, 120)


@pytest.mark.parametrize(
    ("given", "found"), [("1", "127.0.0.1"), ("off", ""), ("[::]:7", "[::]:7")]
)
def test_an_address_is_a_switch_as_well(given: str, found: str) -> None:
    assert read_values({"agent": given}) == {"agent": found}


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError):
        read_values({"agent": "http://host"})
