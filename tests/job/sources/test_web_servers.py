"""Requests of applications without a framework: seen where a real server calls them."""

from __future__ import annotations

import os

import pytest

import sonde
from sonde.session import list_sessions

START = """
import sonde, threading, types, urllib.error, urllib.request
def ask(port, path):
    try: return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()
    except urllib.error.HTTPError as error: return error.code
"""
WSGI = """
import wsgiref.handlers, wsgiref.simple_server
kept = wsgiref.handlers.BaseHandler.run
sonde.start(collector="off", source_request=True)
class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *words): pass
    def get_stderr(self): return types.SimpleNamespace(write=lambda text: None, flush=lambda: None)
class BaseHandler:
    def get_response(self, request):
        request.resolver_match = types.SimpleNamespace(route="order/<int:id>/")
        return types.SimpleNamespace(status_code=201)
def shop(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/fails": raise KeyError("no such order")
    if path == "/order/7": BaseHandler().get_response(types.SimpleNamespace(method="GET"))
    start_response("404 Not Found" if path == "/none" else "200 OK", [])
    return [path.encode()]
sys.modules["django.core.handlers.base"] = module = types.ModuleType("django.core.handlers.base")
module.BaseHandler = BaseHandler
BaseHandler.get_response_async = None
import colorsys  # the next import after it
server = wsgiref.simple_server.make_server("127.0.0.1", 0, shop, handler_class=Quiet)
threading.Thread(target=server.serve_forever, args=(0.01,)).start()
paths = ("/a", "/none", "/fails", "/order/7")
assert [ask(server.server_port, path) for path in paths] == [b"/a", 404, 500, b"/order/7"]
server.shutdown()
server.server_close()
sonde.stop()
assert wsgiref.handlers.BaseHandler.run is kept
"""
ASGI = """
import time, uvicorn
sonde.start(collector="off", source_request=True)
class Shop:
    async def __call__(self, scope, receive, send):
        if scope["type"] != "http": return
        if scope["path"] == "/fails": raise KeyError("no such order")
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
config = uvicorn.Config(Shop(), port=0, log_level="critical", lifespan="off")
server = uvicorn.Server(config)
thread = threading.Thread(target=server.run)
thread.start()
while not server.started: time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]
assert [ask(port, path) for path in ("/a", "/fails")] == [b"done", 500]
server.should_exit = True
thread.join()
sonde.stop()
"""
NAMES = ("framework", "method", "route", "status", "error", "others")


def read() -> list[tuple[object, ...]]:
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    rows = sonde.open(session.folder).query("SELECT * FROM python.request ORDER BY t_ns")
    assert all(
        row["file"] and row["first_line"] for row in rows.to_pylist() if row["status"] != 201
    )
    return [tuple(row[name] for name in NAMES) for row in rows.to_pylist()]


def test_a_plain_wsgi_application_has_rows_and_a_framework_in_it_counts_once(run, root) -> None:
    run("import sys\n" + START + WSGI)
    assert read() == [
        ("wsgi", "GET", "__main__.shop", 200, None, 0),
        ("wsgi", "GET", "__main__.shop", 404, None, 0),
        ("wsgi", "GET", "__main__.shop", None, "KeyError", 0),
        ("django", "GET", "/order/<int:id>/", 201, None, 0),
    ]


def test_a_plain_asgi_application_has_rows_named_by_its_class(run, root) -> None:
    pytest.importorskip("uvicorn")
    run(START + ASGI)
    assert read() == [
        ("asgi", "GET", "__main__.Shop", 202, None, 0),
        ("asgi", "GET", "__main__.Shop", None, "KeyError", 0),
    ]
