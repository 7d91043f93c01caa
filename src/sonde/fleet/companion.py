"""The agent as a child of the collector: `SONDE_AGENT=1` starts it with the job, and it ends with
the last one."""

from __future__ import annotations

import os
import sys
import threading

from sonde.fleet import credentials
from sonde.fleet.agent import AgentServer, double_memory, read_address
from sonde.fleet.answers import Leave
from sonde.store.engine import limited

_MEMORY = "512MiB"  # of a query: it shares the host with the job


def main() -> None:
    """Run as `companion ROOT ADDRESS`; it only reads. End with the process at the other end of
    stdin."""
    threading.Thread(target=_await_end, daemon=True).start()
    root, address = sys.argv[1:3]
    host, port = read_address(address)
    credentials.make_credentials()
    with limited(double_memory(_MEMORY)):
        AgentServer(host, port, Leave(_MEMORY, steer=False, root=root)).serve()


def _await_end() -> None:
    while os.read(0, 1):
        continue
    os._exit(0)
