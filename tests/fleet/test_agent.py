"""Agents: who may ask, what they answer, and what becomes of those that do not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from conftest import wait_for
from sonde.errors import Error
from sonde.fleet import credentials
from sonde.fleet.agent import AgentServer
from sonde.fleet.answers import Leave
from sonde.fleet.client import Asker, Refused
from sonde.fleet.cluster import ask_all
from sonde.fleet.hosts import Cluster
from sonde.fleet.protocol import prove

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
LIMIT = 1 << 24
SESSIONS = {"request": "query", "target": "all", "sql": "SELECT pid FROM sonde.session"}
PROGRAM = """
import sonde, time
sonde.start(collector="off")
def work():
    print("ready", flush=True)
    while True: time.sleep(0.01)
work()
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch) -> Path:
    """Credentials of this test alone."""
    monkeypatch.setenv("SONDE_FLEET", str(tmp_path / "fleet"))
    return Path(credentials.make_credentials())


@pytest.fixture
def serve(fleet: Path) -> Iterator[Callable[..., str]]:
    """Start an agent in this process; its address. All are shut down when the test ends."""
    started: list[AgentServer] = []

    def serve(
        kind: type[AgentServer] = AgentServer, *, steer: bool = False, plain: bool = False
    ) -> str:
        server = kind("127.0.0.1", 0, Leave("512MiB", steer=steer), plain=plain)
        started.append(server)
        return f"{'plain://' if plain else ''}127.0.0.1:{server.port}"

    yield serve
    for server in started:
        server.shutdown()


def ask(
    host: str, request: dict[str, object], limit: int = LIMIT, timeout_s: float = 60
) -> pa.Table:
    with Asker(host, time.monotonic() + timeout_s) as asker:
        return asker.ask(request, limit)


# ---- what is answered ----------------------------------------------------------------------------


def test_a_cluster_answers_like_one_machine_and_who_is_missing_is_named(
    serve, start, sonde_cli, fleet: Path, tmp_path: Path
) -> None:
    process = start(PROGRAM)
    with socket.socket() as dead, socket.socket() as hung:
        dead.bind(("127.0.0.1", 0))  # nobody listens there
        hung.bind(("127.0.0.1", 0))
        hung.listen()  # connections are made, and nothing follows
        late = f"127.0.0.1:{hung.getsockname()[1]}"
        gone = f"127.0.0.1:{dead.getsockname()[1]}"
        good = serve()
        sql = "SELECT pid, COUNT(*) AS n FROM sonde.source GROUP BY pid"
        alone = sonde_cli("query", process.pid, sql)
        done = sonde_cli("query", f"{process.pid}@hosts:{good}", sql)
        assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")
        part = sonde_cli("query", f"@hosts:{good},{gone},{late}", sql, "--timeout", "15s")
        assert (part.returncode, part.stdout) == (9, alone.stdout)
        lines = sorted(part.stderr.splitlines())
        assert len(lines) == 2
        assert f"no answer from {gone} (1 of 3 hosts): nobody listens there" in part.stderr
        assert f"no answer from {late} (1 of 3 hosts): it has not answered in time" in part.stderr
        hangs = sonde_cli("ps", f"@hosts:{late}", "--timeout", "1s")
        assert hangs.returncode == 9 and "it has not answered in time" in hangs.stderr
        none = sonde_cli("query", f"@hosts:{gone}", sql)
        assert (none.returncode, none.stdout) == (9, "") and none.stderr.count("\n") == 1
    wait_for(lambda: "work (" in sonde_cli("stacks", f"@hosts:{good}").stdout, 60)
    check_loads(sonde_cli, good, process.pid)
    rows = json.loads(sonde_cli("ps", f"@hosts:{good}", "--format", "json").stdout)
    assert [(row["pid"], row["state"]) for row in rows] == [(process.pid, "running")]
    assert abs(rows[0]["ahead_ns"]) <= rows[0]["ahead_error_ns"]  # it is the same clock
    wrong = sonde_cli("query", f"@hosts:{good}", "SELECT nothing FROM sonde.source")
    assert wrong.returncode == 5 and wrong.stderr.startswith("sonde: Binder Error")
    unknown = sonde_cli("query", f"nobody@hosts:{good}", sql)
    assert (
        unknown.returncode == 3 and "none of 1 host has a recording called nobody" in unknown.stderr
    )


def check_loads(sonde_cli, good: str, pid: int) -> None:
    """`top` and `modules` of a cluster read the tables of its hosts."""
    done = sonde_cli("top", f"@hosts:{good}", "--idle", "--window", "start", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["pid"] for row in rows} == {pid} and "work" in {row["func"] for row in rows}
    text = sonde_cli("top", f"@hosts:{good}", "--idle", "--window", "start").stdout
    assert text.startswith("1 process on 1 host, since their start") and "work" in text
    modules = sonde_cli("modules", f"@hosts:{good}")
    assert modules.returncode == 1 and "no PyTorch step was recorded" in modules.stderr


def test_an_agent_only_reads_unless_it_is_told_otherwise(serve, start, sonde_cli) -> None:
    process = start(PROGRAM)
    reader, writer = serve(), serve(steer=True)
    change = "stack.every=20ms"
    done = sonde_cli("config", f"{process.pid}@hosts:{reader}", change)
    assert done.returncode == 9 and "this agent only reads" in done.stderr
    assert "20ms" not in sonde_cli("config", f"{process.pid}@hosts:{reader}").stdout
    done = sonde_cli("config", f"{process.pid}@hosts:{writer}", change, "--timeout", "60s")
    assert done.returncode == 0 and "20ms" in done.stdout.replace(" ", "")
    words = ("profile", f"{process.pid}@hosts:{reader}", "--duration", "1s", "--format", "json")
    done = sonde_cli(*words)
    assert done.returncode == 9 and "this agent only reads" in done.stderr
    done = sonde_cli(words[0], f"{process.pid}@hosts:{writer}", *words[2:])
    assert done.returncode == 0, done.stderr
    assert "work" in done.stdout
    done = sonde_cli("capture", f"{process.pid}@hosts:{writer}", "--duration", "1s")
    assert done.returncode == 1 and "has not imported torch" in done.stderr


def test_sql_of_strangers_reads_recordings_and_nothing_else(serve, start, tmp_path: Path) -> None:
    start(PROGRAM)
    host = serve()
    for sql in ("SELECT * FROM read_text('/etc/passwd')", "COPY (SELECT 1) TO 'x'", "SELECT 1; SELECT 2",
                "SET memory_limit = '1TB'", "SELECT repeat('x', 10**9) FROM range(100)"):  # fmt: skip
        with pytest.raises(Refused):
            ask(host, {**SESSIONS, "sql": sql})
    for target in ("/", ".", f"{tmp_path}/sonde"):
        with pytest.raises(Refused, match="not by folder"):
            ask(host, {**SESSIONS, "target": target})
    for request in ({"request": "erase"}, {"request": 3}, {"request": "query", "target": 3}):
        with pytest.raises(Refused):
            ask(host, {"target": "all", **request})
    assert ask(host, SESSIONS).num_rows == 1


# ---- who may ask ---------------------------------------------------------------------------------


def use_other(fleet: Path, *names: str) -> None:
    """Have whoever asks from now on use other credentials than the agent that is running."""
    kept = {path.name: path.read_bytes() for path in fleet.iterdir()}
    shutil.rmtree(fleet)
    credentials.make_credentials()
    for name in kept.keys() - set(names):
        (fleet / name).write_bytes(kept[name])


def test_who_has_another_token_gets_nothing(serve, fleet: Path) -> None:
    host = serve()
    use_other(fleet, credentials.TOKEN)
    with pytest.raises(Refused, match="its token is not the one in our folder"):
        ask(host, SESSIONS)
    # The agent itself refuses, too, whatever the other side thinks of it.
    ticket = json.dumps({"nonce": say_hello(host, fleet), "body": "{}", "proof": "0" * 64}).encode()
    with connect(host, fleet) as client, pytest.raises(flight.FlightUnauthenticatedError):
        client.do_get(flight.Ticket(ticket))


def test_who_has_another_certificate_is_not_told_anything(serve, fleet: Path) -> None:
    host = serve()
    use_other(fleet, credentials.CERTIFICATE, credentials.KEY)
    with pytest.raises(Refused, match="certificate of our agents"):
        ask(host, SESSIONS)


def connect(host: str, fleet: Path) -> flight.FlightClient:
    return flight.FlightClient(
        f"grpc+tls://{host}", tls_root_certs=(fleet / credentials.CERTIFICATE).read_bytes(),
        override_hostname=credentials.NAME,
    )  # fmt: skip


def say_hello(host: str, fleet: Path) -> str:
    with connect(host, fleet) as client:
        action = flight.Action("hello", json.dumps({"nonce": "1"}).encode())
        return json.loads(next(iter(client.do_action(action))).body.to_pybytes())["nonce"]


def test_a_request_that_was_written_down_is_worth_nothing(serve, start, fleet: Path) -> None:
    start(PROGRAM)
    host, token = serve(), credentials.read_token()
    nonce, body = say_hello(host, fleet), json.dumps(SESSIONS)
    proof = prove(token, "asker", nonce, body)
    ticket = flight.Ticket(json.dumps({"nonce": nonce, "body": body, "proof": proof}).encode())
    with connect(host, fleet) as client:
        assert client.do_get(ticket).read_all().num_rows == 1
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.do_get(ticket).read_all()
        other = json.dumps({"nonce": say_hello(host, fleet), "body": body, "proof": proof})
        for raw in (other.encode(), b"", b"[", b"[]", b"[" * 10**5, b"x" * 2**21):
            with pytest.raises(flight.FlightError):
                client.do_get(flight.Ticket(raw)).read_all()
        for action in (flight.Action("hello", b"{}"), flight.Action("shutdown", b"")):
            with pytest.raises(flight.FlightError):
                list(client.do_action(action))
        assert token not in ticket.ticket  # it never travels


def test_without_tls_only_this_machine_is_asked(serve, start) -> None:
    start(PROGRAM)
    assert ask(serve(plain=True), SESSIONS).num_rows == 1
    with pytest.raises(Refused, match="only this machine"):
        ask("plain://10.0.0.1:1", SESSIONS)


def test_the_token_is_for_its_owner_alone(fleet: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in fleet.iterdir()} == {0o600}
    assert fleet.stat().st_mode & 0o777 == 0o700
    token = fleet / credentials.TOKEN
    before = token.read_text()
    assert credentials.make_credentials() == str(fleet) and token.read_text() == before
    if os.geteuid():
        token.chmod(0o640)
    else:
        token.chmod(0o644)
    with pytest.raises(Error, match="can be read by others"):
        credentials.read_token()
    token.unlink()
    with pytest.raises(Error, match="there is no"):
        ask_all(Cluster("all", ["127.0.0.1"]), SESSIONS, 1)


# ---- agents that are not what they seem ----------------------------------------------------------


class TooMuch(AgentServer):
    """Answers without end."""

    def do_get(self, _context: object, _ticket: object) -> object:
        batch = pa.record_batch({"pid": pa.array(range(100_000))})

        def flood() -> Iterator[pa.RecordBatch]:
            while True:
                yield batch

        return flight.GeneratorStream(batch.schema, flood())


class HugePiece(AgentServer):
    """Answers with one piece that is larger than any may be."""

    def do_get(self, _context: object, _ticket: object) -> object:
        return flight.RecordBatchStream(pa.table({"pid": pa.array(range(9_000_000))}))


class Garbage(AgentServer):
    """Answers with offsets that lead out of its own data."""

    def do_get(self, _context: object, _ticket: object) -> object:
        offsets = pa.py_buffer(b"\x00\x00\x00\x00\xff\xff\xff\x7f")
        text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"x")])
        return flight.RecordBatchStream(pa.table({"pid": text}))


class OtherColumns(AgentServer):
    """Answers a request for stacks with something else."""

    def do_get(self, _context: object, _ticket: object) -> object:
        return flight.RecordBatchStream(pa.table({"host": ["\x1b[31mme"]}))


class ShortTexts(AgentServer):
    """Answers with messages of so many sizes that some come to lie at an odd place."""

    def do_get(self, _context: object, _ticket: object) -> object:
        batches = [
            pa.record_batch({"text": ["x" * n], "t_ns": pa.array([n], pa.int64())})
            for n in range(64)
        ]
        return flight.RecordBatchStream(pa.Table.from_batches(batches))


def test_numbers_of_an_answer_lie_where_a_processor_wants_them(serve) -> None:
    # Arrow warns of others, on stderr, when it groups or joins them.
    rows = ask(serve(ShortTexts), SESSIONS)
    assert rows["t_ns"].to_pylist() == list(range(64))
    places = [chunk.buffers()[1].address % 8 for chunk in rows["t_ns"].chunks]
    assert set(places) == {0}, places


@pytest.mark.parametrize(
    ("kind", "said"),
    [(TooMuch, "its answer is larger than"), (HugePiece, "piece of its answer is larger than"),
     (Garbage, "its answer cannot be read")],
)  # fmt: skip
def test_a_hostile_answer_is_bounded_and_costs_one_line(kind, said: str, serve) -> None:
    with pytest.raises(Refused, match=said) as raised:
        ask(serve(kind), SESSIONS)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 250


def test_a_hostile_agent_does_not_spoil_the_answers_of_the_others(serve, start, sonde_cli) -> None:
    process = start(PROGRAM)
    good, bad = serve(), serve(OtherColumns)
    done = sonde_cli("stacks", f"{process.pid}@hosts:{good},{bad}")
    assert done.returncode == 9 and "work (" in done.stdout
    assert f"no answer from {bad} (1 of 2 hosts): its answer has no stacks" in done.stderr


DIES = """
import os, signal
from sonde.fleet.agent import AgentServer
from sonde.fleet.answers import Leave
class Dies(AgentServer):
    def do_get(self, _context, _ticket):
        os.kill(os.getpid(), signal.SIGKILL)
server = Dies("127.0.0.1", 0, Leave("512MiB", steer=False))
print("ready", flush=True)
print(server.port, flush=True)
server.serve()
"""


def test_an_agent_that_is_killed_while_it_works_is_named(serve, start, sonde_cli) -> None:
    process = start(PROGRAM)
    good = serve()
    for words in (("query", "SELECT pid FROM sonde.session"), ("stacks",)):
        dies = start(DIES)
        bad = f"127.0.0.1:{dies.stdout.readline().strip()}"
        done = sonde_cli(words[0], f"{process.pid}@hosts:{good},{bad}", *words[1:])
        assert dies.wait(60) == -9
        assert done.returncode == 9 and str(process.pid) in done.stdout
        assert done.stderr.count("\n") == 1
        assert f"no answer from {bad} (1 of 2 hosts)" in done.stderr


def test_who_reads_a_few_lines_learns_of_missing_hosts(serve, start) -> None:
    process = start(PROGRAM)
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # nobody listens there
        hosts = f"@hosts:{serve()},127.0.0.1:{dead.getsockname()[1]}"
        for words in (("stacks", f"{process.pid}{hosts}"), ("ps", hosts)):
            with subprocess.Popen([sys.executable, "-m", "sonde", *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as asked:  # fmt: skip
                asked.stdout.close()
                said = asked.stderr.read()
            assert asked.returncode == 9
            assert said.count("\n") == 1 and "nobody listens there" in said


def test_commands_of_one_machine_say_that_they_ask_no_cluster(sonde_cli) -> None:
    done = sonde_cli("advise", "job@hosts:a,b")
    assert done.returncode == 2
    assert "asks no cluster" in done.stderr and "modules" in done.stderr


def test_something_else_that_listens_there_is_no_agent_and_costs_one_line(fleet, sonde_cli) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def answer() -> None:
            listener.settimeout(60)
            peer, _ = listener.accept()
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
            peer.close()

        for _ in range(2):
            threading.Thread(target=answer).start()
        with pytest.raises(Refused):
            ask(f"127.0.0.1:{port}", SESSIONS, timeout_s=5)
        done = sonde_cli("query", f"@hosts:127.0.0.1:{port}", SESSIONS["sql"])
        assert done.returncode == 9 and done.stderr.count("\n") == 1, done.stderr


def test_two_agents_do_not_share_a_port(serve, fleet: Path) -> None:
    port = int(serve().rpartition(":")[2])
    with pytest.raises(Error, match=f"127.0.0.1:{port} cannot be listened on"):
        AgentServer("127.0.0.1", port, Leave("512MiB", steer=False))


def test_an_agent_that_cannot_start_says_so_in_one_line(fleet: Path) -> None:
    # An address of nobody, and no check before: as if another one had come in between.
    code = """
import sys
from sonde.fleet import agent
agent._check_port = lambda *_: None
sys.argv = ["sonde", "agent", "--listen", "192.0.2.1"]
from sonde.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=False)  # fmt: skip
    assert done.returncode == 1
    assert " ".join(done.stderr.split()).startswith("sonde: 192.0.2.1:7434 cannot be listened on")
    assert "leaked" not in done.stderr
