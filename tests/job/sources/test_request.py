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
class Signal(list):
    def connect(self, receiver, weak=True): assert not weak; self.append(receiver)
    def disconnect(self, receiver): self.remove(receiver)
    def send(self, **kwargs): [receiver(signal=self, sender=None, **kwargs) for receiver in self]
before, after = Signal(), Signal()
make("celery.signals", task_prerun=before, task_postrun=after)
class FunctionActorManager:
    def _make_actor_method_executor(self, name, method):
        def execute(actor, *args, **kwargs): return method(actor, *args, **kwargs)
        execute.name, execute.method = name, method
        return execute
make("ray._private.function_manager", FunctionActorManager=FunctionActorManager)
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
def send_mail(): pass
task = types.SimpleNamespace(name="shop.send_mail", run=send_mail)
for state, result in ("SUCCESS", 1), ("FAILURE", OSError("no")):
    before.send(task_id="a", task=task, args=(), kwargs={})
    after.send(task_id="a", task=task, retval=result, state=state)
class Counter:
    def plain(self, by): return by
    async def late(self): await asyncio.sleep(0.01); return "late"
make_executor = FunctionActorManager()._make_actor_method_executor
plain, late = make_executor("plain", Counter.plain), make_executor("late", Counter.late)
assert plain.name == "plain" and late.method is Counter.late
assert plain(Counter(), by=3) == 3 and asyncio.run(late(Counter())) == "late"
sonde.stop()
assert not before and not after
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
        ("celery", "task", "shop.send_mail", None, None, 0),
        ("celery", "task", "shop.send_mail", None, "OSError", 0),
        ("ray", "actor", "Counter.plain", None, None, 0),
        ("ray", "actor", "Counter.late", None, None, 0),
    ]  # fmt: skip
    assert rows[-1]["dur_ns"] >= 10_000_000  # with what it awaited
    assert rows[-1]["file"] == rows[-3]["file"] and rows[-1]["first_line"] > rows[-3]["first_line"]
    shown = sonde_cli("requests", session.folder).stdout.splitlines()
    assert any(line.startswith("GET /user/<int:id>/") for line in shown)
    assert shown[0].startswith("11 requests in ") and shown[0].endswith(" 3 failed")


START = """
import os, threading, time
import sonde
sonde.start(collector="off", source_request=True)
task = types.SimpleNamespace(name="shop.send_mail", run=print)
"""
FORKS = """
if (child := os.fork()) == 0:
    before.send(task_id="a", task=task)
    assert Flask().full_dispatch_request().status_code == 503
    after.send(task_id="a", task=task, retval=1, state="SUCCESS")
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
if (child := os.fork()) == 0:
    make("starlette.applications", Starlette=Starlette)  # the child imports it itself
    import colorsys
    async def send(message): pass
    asyncio.run(Starlette()({"type": "http", "method": "POST"}, None, send))
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""
# Whoever begins the recording of a child, it is not its first request.
AT_ONCE = """
import sonde.job.sources.request
kept, began, is_asked = sonde.job.sources.request.Source.start, [], False
def start_noted(source):
    began.append(is_asked and threading.current_thread() is threading.main_thread())
    kept(source)
if (child := os.fork()) == 0:
    sonde.job.sources.request.Source.start = start_noted
    is_asked = True
    Flask().full_dispatch_request()
    is_asked = False
    deadline = time.monotonic() + 120
    while not began and time.monotonic() < deadline: time.sleep(0.01)
    os._exit(began != [False])
assert os.waitpid(child, 0)[1] == 0
"""
# The thread that begins the recording of a child is held up right before it starts our source.
SLOW = """
import sonde.job.sources.request
begins, goes_on = threading.Event(), threading.Event()
kept = sonde.job.sources.request.Source.start
def start_late(source):
    begins.set()
    assert goes_on.wait(120)
    time.sleep(0.2)  # for what would be missed meanwhile
    kept(source)
if (child := os.fork()) == 0:
    sonde.job.sources.request.Source.start = start_late
    assert begins.wait(120)
    goes_on.set()
    before.send(task_id="b", task=task)
    after.send(task_id="b", task=task, retval=1, state="SUCCESS")
    sys.exit(bool(not before or len(before) > 1))
assert os.waitpid(child, 0)[1] == 0
"""


def list_requests() -> list[tuple[object, ...]]:
    folders = [one.folder for one in list_sessions(os.environ["SONDE_DIR"])]
    sql = "SELECT framework, status, others FROM python.request ORDER BY t_ns"
    return [tuple(row.values()) for row in sonde.open(folders).query(sql).to_pylist()]


def test_the_first_requests_of_a_forked_child_have_rows_however_short_its_life(run, root) -> None:
    run(FRAMEWORKS + START + FORKS)
    assert list_requests() == [("celery", None, 0), ("flask", 503, 1), ("starlette", 404, 0)]


def test_the_first_request_of_a_forked_child_does_not_wait_for_its_recording(run, root) -> None:
    run(FRAMEWORKS + START + AT_ONCE)
    assert list_requests() == [("flask", 503, 0)]


def test_a_request_that_comes_while_the_recording_of_a_child_begins_has_a_row(run, root) -> None:
    run(FRAMEWORKS + START + SLOW)
    assert list_requests() == [("celery", None, 0)]


def test_without_the_source_it_says_how_to_start_it(run, root, sonde_cli) -> None:
    run("import sonde; sonde.start(collector='off')")
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    done = sonde_cli("requests", session.folder)
    assert done.returncode == 1 and "source.request=on" in done.stderr
    assert "sonde config" not in done.stderr  # it has ended
