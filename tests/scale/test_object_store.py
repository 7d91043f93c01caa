"""Shipping to a real object store, with every kind of trouble on the way: `make test-scale`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from support.engine_clusters import can_connect, find_port
from support.fault_proxy import FAULTS, FaultProxy
from support.guarded import end_guarded, start_guarded

pytest.importorskip("moto", reason="make test-scale installs it")

PROGRAM = """
import sonde
class Row:
    n: int
emit = sonde.table(Row)
sonde.start(collector="off")
for n in range(3000): emit(n)
"""
# Where `make test-scale` puts the emulator, and the key that is printed in its documentation.
AZURITE = Path(sys.prefix, "share", "azurite", "node_modules", ".bin")
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
SQL = "SELECT COUNT(*) AS n, COUNT(DISTINCT n) AS d FROM job.row"
WHOLE = [{"n": 3000, "d": 3000}]


@contextmanager
def serve(*words: str) -> Iterator[int]:
    """Run a server on a port of its own, which is {port} in its words."""
    port = find_port()
    process = start_guarded([word.format(port=port) for word in words], os.environ)
    try:
        wait_for(lambda: can_connect(port))
        yield port
    finally:
        end_guarded(process)


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """A server that speaks S3, with a bucket; its port."""
    code = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with serve(sys.executable, "-c", code) as port:
        fs = pafs.S3FileSystem(
            access_key="key", secret_key="secret", endpoint_override=f"127.0.0.1:{port}",
            scheme="http", region="us-east-1", allow_bucket_creation=True,
        )  # fmt: skip
        fs.create_dir("bucket")
        yield port


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


@pytest.fixture
def google() -> Iterator[str]:
    """A server that speaks as Google's store does, with a bucket."""
    pytest.importorskip("gcp_storage_emulator", reason="make test-scale installs it")
    code = ("from gcp_storage_emulator.server import create_server; "
            "create_server('127.0.0.1', {port}, in_memory=True, default_bucket='bucket').run()")  # fmt: skip
    with serve(sys.executable, "-c", code) as port:
        yield f"gs://anonymous@bucket/sonde?scheme=http&endpoint_override=127.0.0.1:{port}"


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Azure's own emulator, with a container; its key is the one that everybody knows."""
    command = shutil.which("azurite-blob", path=f"{AZURITE}{os.pathsep}{os.environ['PATH']}")
    if command is None:
        pytest.skip("needs azurite from npm")
    monkeypatch.setenv("AZURE_STORAGE_KEY", AZURITE_KEY)
    with serve(command, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck",
               "--blobPort", "{port}") as port:  # fmt: skip
        at = f"127.0.0.1:{port}"
        fs = pafs.AzureFileSystem(
            "devstoreaccount1", account_key=AZURITE_KEY, blob_storage_authority=at,
            dfs_storage_authority=at, blob_storage_scheme="http", dfs_storage_scheme="http",
        )  # fmt: skip
        fs.create_dir("container")
        yield f"abfs://devstoreaccount1@{at}/container/sonde?enable_tls=false"


@pytest.mark.parametrize("kind", ["google", "azure"])
def test_other_stores_take_and_answer_the_same(
    kind: str, run, root: Path, request: pytest.FixtureRequest
) -> None:
    to = request.getfixturevalue(kind)
    run(PROGRAM, SONDE_ARCHIVE_TO=to)
    (session,) = list_sessions(str(root))
    make_segments(session)
    Shipper(str(root)).step(0.0)
    (row,) = ask(session.folder, "SELECT * FROM sonde.source WHERE source = 'ship'")
    assert row["state"] == "on", row
    assert ask(to, SQL) == WHOLE
    done = {one.table: one for one in compact(FleetPlace(to))}
    assert done["job.row"].before == 3
    assert ask(to, SQL) == ask(f"{to}#{session.id}", SQL) == WHOLE
