"""An HTTP proxy on the loopback address that lets the requests of a test fail in chosen ways."""

from __future__ import annotations

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("drop", "delay", "500", "503", "truncate", "refuse")
SLOW = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Slow down</Message></Error>"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Denied</Message></Error>"
ANSWERS = {"500": (500, SLOW), "503": (503, SLOW), "refuse": (403, DENIED)}
HOP = ("transfer-encoding", "content-length", "expect", "connection")


class Handler(BaseHTTPRequestHandler):
    """Passes one request on, or does not."""

    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def handle_request(self) -> None:
        body = self._read_body()
        fault = self.server.fault if self.command in ("PUT", "POST") else ""
        self.server.seen += bool(fault)
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
        elif fault in ANSWERS:
            self._answer(*ANSWERS[fault])
        else:
            time.sleep(1.0 if fault == "delay" else 0.0)
            self._forward(body[: len(body) // 2] if fault == "truncate" else body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        self._answer(answer.status, answer.read(), dict(answer.getheaders()))
        upstream.close()

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(code)
        told = {name.lower(): value for name, value in (headers or {}).items()}
        for name, value in told.items():
            if name not in HOP:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", told.get("content-length", "0") if is_head else str(len(body)))  # fmt: skip
        self.end_headers()
        if not is_head:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on to a server; with a `fault`, those that write come to grief."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.fault, self.seen = target, "", 0
        self.port = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self._thread.join()
