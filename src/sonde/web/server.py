"""The server of the page: on this machine only, for whoever has the link, and for reading only
unless its user allowed more.

It is the standard library's: a handful of requests at a time from one browser need no more, there
is no further package to keep safe, and each answer is made by DuckDB, which blocks anyway."""

from __future__ import annotations

import ctypes
import hmac
import itertools
import json
import os
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from sonde import environ
from sonde.errors import Damaged, Error, NoSession
from sonde.session import Session, list_sessions
from sonde.session.target import add_children, find_sessions
from sonde.web import assets, facts, steer
from sonde.web.answer import JSON, PageAnswer
from sonde.web.opened import Opened
from sonde.web.questions import QUESTIONS, Asked, Questions

ADDRESS, PORT = "127.0.0.1", 7433
_TRIED = 20  # ports, if none is asked for
_LONGEST = 1 << 16  # bytes of a question
_TICK_S = 1.0
_LOOK_TICKS = 3  # between two looks for processes that a live job has started since
_M_MMAP_THRESHOLD = -3  # in malloc.h
_MOST_OPENED = 8  # recordings, whose tables stay open
_HEADERS = {
    "Content-Security-Policy": assets.SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageServer(ThreadingHTTPServer):
    """Serves the page of one target, and of any other that its user picks."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: str, port: int | None = None, *, may_steer: bool = False) -> None:
        _map_large_memory()
        self.may_steer = may_steer
        self.target, self.token = target, secrets.token_urlsafe(24)
        self.files = assets.make_files()
        self.ended = threading.Event()
        self._opened: dict[str, Opened] = {}
        self._seen: set[str] = set()  # targets that were there
        self._lock = threading.Lock()
        super().__init__((ADDRESS, _find_port(port)), _Handler)

    @property
    def link(self) -> str:
        """The address with its token, which stays in the browser: a fragment is never sent."""
        return f"http://{ADDRESS}:{self.server_port}/#token={self.token}"

    @property
    def hosts(self) -> set[str]:
        """The names that a browser may know us by: another name was made to point here."""
        return {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    def open(self, target: str) -> Opened:
        """Return the recording that a target names; the last few stay open."""
        with self._lock:
            found = self._opened.pop(target, None)
            if found is not None and not all(os.path.isdir(one.folder) for one in found.sessions):
                found = None  # its tables may be in memory still; nothing new is to be had of it
            if found is None:
                found = Opened(target, self._find(target))
            self._opened[target] = found
            self._seen.add(target)
            while len(self._opened) > _MOST_OPENED:
                self._opened.pop(next(iter(self._opened))).close()
        return found

    def _find(self, target: str) -> list[Session]:
        try:
            return add_children(find_sessions(target, environ.find_root()))
        except (NoSession, Damaged):
            if target not in self._seen:
                raise
            raise NoSession(
                f"the recording {target} has been removed since it was opened"
            ) from None

    def refresh(self, target: str) -> None:
        """Open a live recording anew if its job has started further processes."""
        found = self.open(target)
        known = {one.folder for one in found.sessions}
        if {one.folder for one in self._find(target)} > known:
            self.forget(target)

    def explain(self, target: str, error: Exception) -> tuple[int, str]:
        """Return the status and the sentence for a failure: reading a recording that is removed
        meanwhile fails in many ways, and one of them says what happened."""
        if not isinstance(error, Error) or isinstance(error, NoSession):
            self.forget(target)
        try:
            self._find(target)
        except (Error, OSError) as found:
            error = found
        return 404 if isinstance(error, NoSession) else 400, str(error)

    def forget(self, target: str) -> None:
        """Open a recording anew with the next question: its files may have changed."""
        with self._lock:
            self._opened.pop(target, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show what is a bug; a browser that went away is none."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """End everything that is under way."""
        self.ended.set()
        self.server_close()
        for one in self._opened.values():
            one.close()


def _find_port(port: int | None) -> int:
    """Return a port that is free: the one asked for, or the first of a few, or any."""
    import socket

    for tried in [port] if port is not None else [*range(PORT, PORT + _TRIED), 0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, tried))
                return int(probe.getsockname()[1])
            except OSError as error:
                reason = error.strerror or str(error)
            except OverflowError:
                reason = "ports go from 0 to 65535"
    raise Error(f"port {port} cannot be used ({reason}); leave --port out, and a free one is found")


def _map_large_memory() -> None:
    """Have malloc map large blocks, always: what a query used goes back whole when it is freed.
    Otherwise glibc gets larger ones from its heap once it has seen some, and keeps the gaps."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if change is not None:
        change(_M_MMAP_THRESHOLD, 256 << 10)


def _give_back_memory() -> None:
    """Return what is free to the system: a server that waits for hours should be small."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "sonde", ""
    timeout = 60.0

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the user."""

    def do_GET(self) -> None:
        """PageAnswer with a file of the page or with data."""
        path = urlsplit(self.path).path
        if not self._is_ours():
            self._refuse(403, "this server answers on its own address only")
        elif path in self.server.files:
            self._send(200, *self.server.files[path])
        elif not path.startswith("/api/"):
            self._refuse(404, "there is no such page")
        elif not self._has_token():
            self._refuse(401, "the link has no valid token; open the one that `sonde ui` printed")
        elif path == "/api/live":
            self._stream()
        else:
            self._answer(path.removeprefix("/api/"), dict(parse_qsl(urlsplit(self.path).query)))

    def do_POST(self) -> None:
        """PageAnswer a question whose parameters are too long for an address, SQL, or do what only
        the page itself may ask for: without its Origin, nothing is steered."""
        if not self._is_ours() or not self._has_token():
            self.close_connection = True
            self._refuse(403, "the link has no valid token; open the one that `sonde ui` printed")
            return
        asked, path = self._read_body(), urlsplit(self.path).path
        if asked is None:
            self.close_connection = True
            self._refuse(400, "this is no question")
        elif not path.startswith("/api/steer/"):
            self._answer(path.removeprefix("/api/"), asked)
        elif not self.server.may_steer:
            self._refuse(403, steer.REFUSED)
        elif self.headers.get("Origin") is None:
            self._refuse(403, "only the page itself may steer: a request without Origin is refused")
        else:
            self._answer(path.removeprefix("/api/steer/"), asked, steer.ACTS)

    def _read_body(self) -> dict[str, str] | None:
        try:
            length = int(self.headers.get("Content-Length", ""))
            found = json.loads(self.rfile.read(length)) if 0 < length <= _LONGEST else None
        except ValueError:
            return None
        known = isinstance(found, dict) and all(isinstance(one, str) for one in found.values())
        return found if known else None

    def _is_ours(self) -> bool:
        """Tell whether the browser means us, and no other page asks in its user's name."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        known = {f"http://{name}" for name in self.server.hosts}
        is_visit = urlsplit(self.path).path in self.server.files and self.command == "GET"
        return (
            host in self.server.hosts
            and (origin is None or origin in known)
            and (site in ("same-origin", "none") or is_visit)
        )

    def _has_token(self) -> bool:
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode())

    def _answer(self, name: str, asked: Asked, known: Questions = QUESTIONS) -> None:
        target = asked.get("target") or self.server.target
        try:
            if name == "recordings":
                choice = facts.describe_choice(list(list_sessions(environ.find_root())))
                answer = PageAnswer({"recordings": choice, "server": facts.describe_server(),
                                 "target": self.server.target,
                                 "steer": self.server.may_steer})  # fmt: skip
            elif name in known:
                answer = known[name](self.server.open(target), asked)
            else:
                self._refuse(404, "there is no such question")
                return
            kind, body = answer.kind, answer.pack()
        except (Error, OSError, ValueError) as error:
            self._refuse(*self.server.explain(target, error))
            return
        del answer
        self._send(200, kind, body)
        del body
        _give_back_memory()

    def _stream(self) -> None:
        """Tell once a second how far the recording has come, as server-sent events, until it ends
        or the browser goes away."""
        target = dict(parse_qsl(urlsplit(self.path).query)).get("target") or self.server.target
        self.close_connection = True
        self.send_response(200)
        self._send_headers("text/event-stream")
        for tick in itertools.count(1):
            try:
                if tick % _LOOK_TICKS == 0:
                    self.server.refresh(target)
                opened = self.server.open(target)
                states = [session.find_state() for session in opened.sessions]
                said = {"until": opened.find_end(), "states": states, "live": opened.is_live}
                event = "tick" if opened.is_live else "end"
            except (Error, OSError) as error:
                event, said = "gone", {"error": self.server.explain(target, error)[1]}
            self.wfile.write(f"event: {event}\ndata: {json.dumps(said)}\n\n".encode())
            self.wfile.flush()
            if event != "tick" or self.server.ended.wait(_TICK_S):
                return

    def _refuse(self, status: int, why: str) -> None:
        self._send(status, JSON, json.dumps({"error": why}).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self._send_headers(kind)
        self.wfile.write(body)

    def _send_headers(self, kind: str) -> None:
        self.send_header("Content-Type", kind)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
