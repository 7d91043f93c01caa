"""python.request: a row for each request, and the application as it was."""

from __future__ import annotations

import os

import sonde
from sonde.session import list_sessions

# Enough of the frameworks to be taken for them; the real ones are tried by hand, see docs/web.md.
FRAMEWORKS = """
import asyncio, sys, types
def make(name, **things):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(things)
class BaseHandler:
    def get_response(self, request):
        request.resolver_match = types.SimpleNamespace(route="user/<int:id>/")
        if request.method == "DELETE": raise KeyError("no such user")
        return types.SimpleNamespace(status_code=200)
    async def get_response_async(self, request): return self.get_response(request)
class Flask:
    def full_dispatch_request(self): return types.SimpleNamespace(status_code=503)
class Starlette:
    async def __call__(self, scope, receive, send):
        scope["route"] = types.SimpleNamespace(path="/item/{id}")
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 404})
make("django.core.handlers.base", BaseHandler=BaseHandler)
make("flask.app", Flask=Flask)
make("flask", request=types.SimpleNamespace(method="PUT", url_rule=None))
kept = BaseHandler.get_response, Flask.full_dispatch_request, Starlette.__call__
"""
PROGRAM = """
import sonde
sonde.start(collector="off", source_request=True)
make("starlette.applications", Starlette=Starlette)
import colorsys  # the next import after it
handler, get = BaseHandler(), types.SimpleNamespace(method="GET")
assert handler.get_response(get).status_code == 200
assert asyncio.run(handler.get_response_async(get)).status_code == 200
try: handler.get_response(types.SimpleNamespace(method="DELETE"))
except KeyError: pass
assert Flask().full_dispatch_request().status_code == 503
async def ask(kind):
    sent = []
    async def send(message): sent.append(message)
    await Starlette()({"type": kind, "method": "POST"}, None, send)
    assert len(sent) == 1
async def both(): await asyncio.gather(ask("http"), ask("http"), ask("lifespan"))
asyncio.run(both())
sonde.stop()
assert (BaseHandler.get_response, Flask.full_dispatch_request, Starlette.__call__) == kept
"""


def test_each_framework_has_rows_with_routes_and_is_left_as_it_was(run, root, sonde_cli) -> None:
    run(FRAMEWORKS + PROGRAM)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    rows = (
        sonde.open(session.folder).query("SELECT * FROM python.request ORDER BY t_ns").to_pylist()
    )
    names = ("framework", "method", "route", "status", "error", "others")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("django", "GET", "/user/<int:id>/", 200, None, 0),
        ("django", "GET", "/user/<int:id>/", 200, None, 0),
        ("django", "GET", "/user/<int:id>/", 200, None, 1),  # which the one before called
        ("django", "DELETE", "/user/<int:id>/", None, "KeyError", 0),
        ("flask", "PUT", None, 503, None, 0),
        ("starlette", "POST", "/item/{id}", 404, None, 0),
        ("starlette", "POST", "/item/{id}", 404, None, 1),
    ]  # fmt: skip
    shown = sonde_cli("requests", session.folder).stdout.splitlines()
    assert "GET /user/<int:id>/" in "\n".join(shown) and "the slowest" in shown


def test_without_the_source_it_says_how_to_start_it(run, root, sonde_cli) -> None:
    run("import sonde; sonde.start(collector='off')")
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    done = sonde_cli("requests", session.folder)
    assert done.returncode == 1 and "source.request=on" in done.stderr
