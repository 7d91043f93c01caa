"""Shipping to a real object store, with every kind of trouble on the way: `make test-scale`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from conftest import wait_for
from sonde.collector.shipper import Shipper
from sonde.session import Session, list_sessions
from sonde.store import archive
from sonde.store.compaction import compact
from sonde.store.place import FleetPlace
from sonde.store.recording import open_recording
from sonde.store.rows import make_table, open_tables
from support.fault_proxy import FAULTS, FaultProxy

pytest.importorskip("moto", reason="make test-scale installs it")

PROGRAM = """
import sonde
class Row:
    n: int
emit = sonde.table(Row)
sonde.start(collector="off")
for n in range(3000): emit(n)
"""
SQL = "SELECT COUNT(*) AS n, COUNT(DISTINCT n) AS d FROM job.row"
WHOLE = [{"n": 3000, "d": 3000}]


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """A server that speaks S3, with a bucket; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "SONDE": "0"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: _can_connect(port))
        fs = pafs.S3FileSystem(
            access_key="key", secret_key="secret", endpoint_override=f"127.0.0.1:{port}",
            scheme="http", region="us-east-1", allow_bucket_creation=True,
        )  # fmt: skip
        fs.create_dir("bucket")
        yield port
    finally:
        process.kill()
        process.wait()


def _can_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_segments(session: Session) -> None:
    ring = open_tables(session)["job.row"].ring
    assert ring is not None
    for first in range(0, 3000, 1000):
        rows = make_table(session, ring.schema, ring.read(first, first + 1000))
        archive.write_segment(session, "job.row", rows, first, first + 1000, 0)


def ask(target: str, sql: str) -> list[dict[str, object]]:
    return open_recording(target).query(sql).to_pylist()


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_arrive_once_after_every_kind_of_trouble(
    fault: str, store: int, run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    proxy = FaultProxy(store)
    to = f"s3://bucket/{fault}?endpoint_override=http://127.0.0.1:{proxy.port}"
    try:
        run(PROGRAM, SONDE_ARCHIVE_TO=to)
        (session,) = list_sessions(str(root))
        make_segments(session)
        shipper = Shipper(str(root))
        proxy.fault = fault
        shipper.step(0.0)
        assert proxy.seen
        (row,) = ask(session.folder, "SELECT * FROM sonde.source WHERE source = 'ship'")
        assert row["state"] == ("on" if fault == "delay" else "failed"), row
        assert fault == "delay" or "kept here" in str(row["detail"])
        proxy.fault = ""
        shipper.step(1000.0)
        (row,) = ask(session.folder, "SELECT * FROM sonde.source WHERE source = 'ship'")
        assert row["state"] == "on", row
        assert ask(to, SQL) == WHOLE
        done = {one.table: one for one in compact(FleetPlace(to))}
        assert done["job.row"].before == 3
        assert ask(to, SQL) == ask(f"{to}#{session.id}", SQL) == WHOLE
    finally:
        proxy.close()
