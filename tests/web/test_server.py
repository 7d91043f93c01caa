"""The server of the page: whom it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.errors import Error, NoSession
from sonde.session import Session
from sonde.web.answer import PageAnswer, make_exact
from sonde.web.opened import Opened
from sonde.web.questions import QUESTIONS, list_longer, pick_width
from sonde.web.report import _ask, make_report
from sonde.web.server import PageServer
from support.places import GOLDEN

S = 10**9
TARGET = str(GOLDEN / "sealed") + os.sep


@pytest.fixture
def server() -> Iterator[PageServer]:
    one = PageServer(TARGET, 0)
    thread = threading.Thread(target=one.serve_forever)
    thread.start()
    yield one
    one.shutdown()
    thread.join()
    one.close()


def ask(
    server: PageServer, path: str, *, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    known = {"Host": f"127.0.0.1:{server.server_port}", "Connection": "close"}
    known |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {name: one for name, one in known.items() if one})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_server_answers_its_own_page_only(server: PageServer) -> None:
    token = f"Bearer {server.token}"
    assert ask(server, "/api/about", Authorization=token)[0] == 200
    refused = [
        ask(server, "/api/about"),
        ask(server, "/api/about", Authorization="Bearer wrong"),
        ask(server, "/api/about", Authorization=token, Host="evil.example:80"),
        ask(server, "/", Host=f"evil.example:{server.server_port}"),
        ask(server, "/api/about", Authorization=token, Origin="http://evil.example"),
        ask(server, "/api/about", Authorization=token, Sec_Fetch_Site="cross-site"),
        ask(server, "/api/query", method="POST", body='{"sql": "SELECT 1"}'),
        ask(server, "/api/query", method="POST", body="{}" * 40_000, Authorization=token),
        ask(server, "/api/query", method="POST", body='{"sql": 1}', Authorization=token),
        ask(server, "/../../etc/passwd"),
        ask(server, "/api/nothing", Authorization=token),
    ]
    assert [status for status, _, _ in refused] == [
        401,
        401,
        403,
        403,
        403,
        403,
        403,
        400,
        400,
        404,
        404,
    ]
    assert all("error" in json.loads(body) for _, _, body in refused)
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_has_no_data_and_a_strict_policy(server: PageServer) -> None:
    size = 0
    for path in ("/", "/page.css", "/page.js"):
        status, headers, body = ask(server, path)
        size += len(body)
        assert status == 200 and server.token.encode() not in body
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        # The one address is told to people who saved a file for that viewer.
        assert set(re.findall(rb"https?://[\w.]+", body)) <= {b"https://www.speedscope.app"}
        assert b"innerHTML" not in body
    assert size < 300_000


def test_every_question_is_answered_with_its_sql(server: PageServer) -> None:
    token = f"Bearer {server.token}"
    for name in ("about", "stacks", "steps", "machine", "marks", "events", "modules", "cost",
                 "advice", "now", "tables", "profiles"):  # fmt: skip
        status, _, body = ask(server, f"/api/{name}", Authorization=token)
        assert status == 200, (name, body)
        start = 4 if name == "stacks" else 0
        head = json.JSONDecoder().raw_decode(body[start:].decode("utf-8", "replace"))[0]
        assert head["sql"] or name == "machine", name


def test_a_wrong_question_is_one_clear_line(server: PageServer) -> None:
    token = f"Bearer {server.token}"
    for path, word in (("/api/stacks?from=x", "nanoseconds"), ("/api/stacks?from=9&to=1", "pieces"),
                       ("/api/about?target=nobody-7", "nobody-7"),
                       ("/api/compare?from=0&to=1000000000", "too short"),
                       ("/api/export?to_format=doc", "'doc' is not a format"),
                       ("/api/compare?against=nobody-8", "nobody-8")):  # fmt: skip
        status, _, body = ask(server, path, Authorization=token)
        assert status in (400, 404) and word in json.loads(body)["error"]
    query = json.dumps({"sql": "DROP TABLE x"})
    status, _, body = ask(server, "/api/query", method="POST", body=query, Authorization=token)
    assert status == 400 and "only be read" in json.loads(body)["error"]


def test_nothing_steers_unless_it_was_allowed_and_the_page_asks(server: PageServer) -> None:
    token, body = f"Bearer {server.token}", '{"key": "stack.every", "value": "5ms"}'
    origin = f"http://127.0.0.1:{server.server_port}"

    def post(**headers: str) -> tuple[int, str]:
        status, _, said = ask(server, "/api/steer/configure", method="POST", body=body, **headers)
        return status, json.loads(said)["error"]

    status, why = post(Authorization=token, Origin=origin)
    assert status == 403 and "--allow-steer" in why
    server.may_steer = True
    assert post(Authorization=token)[0] == 403  # no Origin: no page asks
    assert post(Authorization=token, Origin="http://evil.example")[0] == 403
    assert post(Origin=origin)[0] == 403
    assert ask(server, "/api/steer/configure", Authorization=token, Origin=origin)[0] == 404
    status, why = post(Authorization=token, Origin=origin)
    assert status == 400 and "has ended and cannot be changed" in why


def test_a_port_that_is_taken_is_one_clear_line(server: PageServer) -> None:
    with pytest.raises(
        Error, match=rf"port {server.server_port} cannot be used \(Address already in use\)"
    ):
        PageServer(TARGET, server.server_port)
    with pytest.raises(Error, match="ports go from 0 to 65535"):
        PageServer(TARGET, 80_000)


def test_a_recording_that_was_removed_is_one_clear_line(server: PageServer, tmp_path: Path) -> None:
    token, copy = f"Bearer {server.token}", tmp_path / "copy"
    shutil.copytree(TARGET, copy)
    target = f"target={copy}{os.sep}"
    assert ask(server, f"/api/stacks?{target}", Authorization=token)[0] == 200
    shutil.rmtree(copy)
    for name in ("about", "stacks", "now", "advice"):  # the first is asked of what is still open
        status, _, body = ask(server, f"/api/{name}?{target}", Authorization=token)
        assert status == 404 and "removed" in json.loads(body)["error"], (name, body)
    _, _, body = ask(server, f"/api/live?{target}", Authorization=token)
    assert b"event: gone" in body and b"removed" in body


def test_a_recording_of_another_user_is_one_clear_line(tmp_path: Path) -> None:
    shutil.copytree(TARGET, tmp_path / "copy")
    os.chmod(tmp_path / "copy", 0)
    is_root = os.geteuid() == 0  # who may read everything
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(Error, match="cannot be read: it is another user"):
            Session(str(tmp_path / "copy"))
    finally:
        if is_root:
            os.seteuid(0)


def test_a_recording_that_is_removed_while_it_is_asked_is_said_to_be_removed(
    server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.target = str(shutil.copytree(TARGET, tmp_path / "mine"))

    def miss(opened: Opened, _: object) -> PageAnswer:
        shutil.rmtree(server.target)
        raise NoSession(f"{opened.sessions[0].folder} has lost a file")

    monkeypatch.setitem(QUESTIONS, "about", miss)
    status, _, body = ask(server, "/api/about", Authorization=f"Bearer {server.token}")
    said = f"the recording {server.target} has been removed since it was opened"
    assert (status, json.loads(body)) == (404, {"error": said})


def test_a_report_gets_coarser_until_it_fits_and_says_so() -> None:
    opened = Opened("sealed", [Session(TARGET)])
    given = {"advice": QUESTIONS["advice"](opened, {})}  # it takes longest, and is the same
    page, thinned = make_report(opened, given=given)
    coarse, said = make_report(opened, len(page) - 60, given)  # a few bytes differ each time
    assert len(coarse) < len(page)
    assert said != thinned and said.startswith("one file, in pieces of ")
    with pytest.raises(Error, match="even in pieces of"):
        make_report(opened, 1000, given)
    opened.close()
    assert list_longer(10 * S, 120 * S) == [30 * S, 60 * S, 120 * S]


def test_a_report_without_a_verdict_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> PageAnswer:
        raise Error("it needs more than 2GiB")

    opened = Opened("sealed", [Session(TARGET)])
    monkeypatch.setitem(QUESTIONS, "advice", refuse)
    answer = _ask(opened, "advice", {})
    assert answer.data == {"advice": None, "problem": "it needs more than 2GiB"}
    opened.close()


def test_pieces_are_of_lengths_that_people_read() -> None:
    assert [pick_width(s * 10**9) / 1e9 for s in (1, 61, 3600, 86400)] == [0.01, 0.2, 10, 300]


def test_numbers_that_a_script_would_round_are_texts() -> None:
    assert make_exact([2**60, 7, float("nan"), True]) == [str(2**60), 7, "nan", True]


def test_a_link_opens_by_way_of_a_file_that_only_its_user_reads(
    server: PageServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sonde.cli import ui

    opened: list[str] = []
    monkeypatch.setattr(ui.webbrowser, "get", lambda: None)
    monkeypatch.setattr(ui.webbrowser, "open", opened.append)
    root.mkdir()
    ui._open_browser(server)
    [address] = opened
    assert server.token not in address
    path = Path(address.removeprefix("file://"))
    assert path.stat().st_mode & 0o777 == 0o600 and server.link in path.read_text()
