"""Where the hosts of a cluster come from."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sonde.errors import ConfigError, Error
from sonde.fleet.discovery import dns
from sonde.fleet.discovery.slurm import expand_nodes
from sonde.fleet.hosts import find_cluster


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("node1", ["node1"]),
        ("node[001-003],login", ["node001", "node002", "node003", "login"]),
        ("gpu[8-11,20]", ["gpu8", "gpu9", "gpu10", "gpu11", "gpu20"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a, b-x", ["a", "b-x"]),
    ],
)
def test_slurms_lists_are_expanded_with_their_zeros(listed: str, names: list[str]) -> None:
    assert expand_nodes(listed) == names


@pytest.mark.parametrize("listed", ["", "node[1-", "node[a-b]", "n[1-999999999]", "x]y", "n[]",
                                    "a[1-1000]b[1-1000]"])  # fmt: skip
def test_a_list_that_makes_no_sense_or_no_end_is_refused(listed: str) -> None:
    with pytest.raises(Error):
        expand_nodes(listed)


def test_a_target_names_a_cluster_behind_its_last_at(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\nnode1\nnode2:99  # other port\n\nnode1\n")
    assert find_cluster(f"train-7@file:{file}") == ("train-7", ["node1", "node2:99"])
    assert find_cluster("@hosts:a,b") == ("all", ["a", "b"])
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert find_cluster("x@y@slurm") == ("x@y", ["n1", "n2"])
    assert find_cluster("4242") is find_cluster("me@home") is find_cluster(None) is None
    folder = tmp_path / "run@hosts"
    folder.mkdir()
    assert find_cluster(str(folder)) is None  # it is a folder, whatever it is called


def test_a_cluster_without_hosts_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    with pytest.raises(Error, match="not inside a SLURM job"):
        find_cluster("@slurm")
    with pytest.raises(ConfigError, match="names no hosts"):
        find_cluster("@hosts:")
    with pytest.raises(Error, match="No such file"):
        find_cluster(f"@file:{tmp_path}/none")


def test_every_address_of_a_name_is_a_host(monkeypatch) -> None:
    def resolve(name: str, _port: object, **_more: object) -> list[tuple[object, ...]]:
        if name != "agents":
            raise socket.gaierror("unknown")
        return [(0, 0, 0, "", (one, 0)) for one in ("10.0.0.2", "10.0.0.1", "10.0.0.1", "fd00::1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert dns.list_hosts("agents") == ["10.0.0.1", "10.0.0.2", "[fd00::1]"]
    assert dns.list_hosts("agents:99")[0] == "10.0.0.1:99"
    with pytest.raises(Error, match="has no address"):
        dns.list_hosts("nobody")


def test_rays_dashboard_lists_the_nodes_that_are_alive() -> None:
    nodes = [{"node_ip": "10.0.0.1", "state": "ALIVE"}, {"node_ip": "10.0.0.2", "state": "DEAD"},
             {"node_ip": "10.0.0.3", "state": "ALIVE"}]  # fmt: skip

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            whole = {"result": True, "data": {"result": {"result": nodes}}}
            self.wfile.write(json.dumps(whole if self.path.startswith("/api/v0/") else {}).encode())

        def log_message(self, *_words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = f"127.0.0.1:{server.server_port}"
        try:
            assert find_cluster(f"train@ray:{place}") == ("train", ["10.0.0.1", "10.0.0.3"])
            nodes[0].pop("node_ip")
            with pytest.raises(Error, match="is not Ray's dashboard"):
                find_cluster(f"@ray:{place}")
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(Error, match="dashboard does not answer"):
        find_cluster(f"@ray:{place}")


def test_torchruns_store_names_the_hosts_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as rendezvous

    state = rendezvous._RendezvousState()
    state.participants = {rendezvous._NodeDesc("node2", 7, 0): 1,
                          rendezvous._NodeDesc("node1", 8, 0): 0}  # fmt: skip
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("torch.rendezvous.job", base64.b64encode(pickle.dumps(state)))
    place = f"@torchrun:127.0.0.1:{store.port}"
    assert find_cluster(f"{place}/job") == ("all", ["node1", "node2"])

    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "harm",)

    for text in (base64.b64encode(pickle.dumps(Harm())), b"%%%", b"", base64.b64encode(b"x")):
        store.set("torch.rendezvous.job", text)
        with pytest.raises(Error, match="holds no rendezvous"):
            find_cluster(f"{place}/job")
    assert not (tmp_path / "harm").exists()
    with pytest.raises(Error, match="write @torchrun"):
        find_cluster("@torchrun:node1")
