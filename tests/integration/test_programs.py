"""Real programs, where they are installed, asked what their users ask: `make frameworks`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from conftest import wait_for

RECORDED = {"SONDE": "1", "SONDE_COLLECTOR": "off", "SONDE_SOURCE_REQUEST": "on"}

FASTAPI = """
import asyncio, threading, time, urllib.request
import uvicorn
from fastapi import FastAPI
app = FastAPI()
def load(): time.sleep(0.2)
@app.get("/blocks")
async def blocks(): load(); return 1
@app.get("/late/{n}")
async def late(n: int): await asyncio.sleep(0.02); return n
def main():
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started: time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    def ask(path): urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read()
    for n in range(4):
        asking = [threading.Thread(target=ask, args=(path,)) for path in ("/blocks", f"/late/{n}")]
        for one in asking: one.start()
        for one in asking: one.join()
    server.should_exit = True
    thread.join()
if __name__ == "__main__": main()
"""


def test_fastapi_which_route_is_slow_and_who_keeps_the_loop(run, sonde_cli) -> None:
    pytest.importorskip("fastapi"), pytest.importorskip("uvicorn")
    run(FASTAPI, **RECORDED)
    shown = sonde_cli("requests", "program.py").stdout
    kept = next(line for line in shown.splitlines() if line.startswith("the event loop"))
    assert "load (" in kept and "program.py:" in kept and "blocks (" in kept
    slow = shown.partition("the slowest")[2]
    assert "GET /blocks  200" in slow and "waiting in time.sleep, called by load" in slow
    assert "GET /late/{n}" in shown


DJANGO = """
from django.conf import settings
settings.configure(
    ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], SECRET_KEY="x",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django
django.setup()
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import path
def read_order(number):
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [number])
        return cursor.fetchone()
def orders(request, count): return HttpResponse(str([read_order(n) for n in range(count)]))
urlpatterns = [path("orders/<int:count>/", orders)]
assert Client().get("/orders/20000/").status_code == 200
"""


def test_django_where_the_time_of_many_queries_went(run, sonde_cli) -> None:
    pytest.importorskip("django")
    run(DJANGO, **RECORDED)
    requests = sonde_cli("requests", "program.py").stdout
    assert "GET /orders/<int:count>/" in requests and "in read_order (" in requests
    lines = sonde_cli("tree", "program.py").stdout.splitlines()
    assert any("read_order" in line and "program.py:" in line for line in lines[:15])


GUNICORN = """
import os, time
def fetch_slowly(): time.sleep(0.03)
def app(environ, start_response):
    if os.getpid() % 2: fetch_slowly()  # one of two workers, as their pids follow each other
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


def test_gunicorn_which_worker_differs(tmp_path: Path, root: Path, sonde_cli) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "shop.py").write_text(GUNICORN)
    told = tmp_path / "told"
    command = [sys.executable, "-m", "gunicorn", "-w", "4", "-b", "127.0.0.1:0", "shop:app",
               "--log-file", str(told), "--log-level", "info"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **RECORDED}, start_new_session=True
    ) as server:
        try:
            wait_for(lambda: told.exists() and told.read_text().count("Booting worker") == 4)
            port = told.read_text().partition("Listening at: http://127.0.0.1:")[2].split()[0]
            seen = set[bytes]()

            def ask() -> bool:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                    seen.add(answer.read())
                return len({int(pid) % 2 for pid in seen}) == 2

            wait_for(ask)
            for _ in range(60):
                ask()
            shown = sonde_cli("top", "gunicorn", "--once", "--window", "5min").stdout
            assert "fetch_slowly" in shown and "shop.py:3" in shown
        finally:
            os.killpg(server.pid, signal.SIGKILL)


CELERY = """
import time
from celery import Celery
app = Celery("shop", broker="memory://", task_always_eager=True)
@app.task
def resize(n): time.sleep(0.7 * n); return n
@app.task
def fail(): raise KeyError("no such order")
for n in range(3): assert resize.delay(n).get() == n
assert fail.delay().failed()
"""


def test_celery_which_task_is_slow_and_which_fails(run, sonde_cli) -> None:
    pytest.importorskip("celery")
    run(CELERY, **RECORDED)
    lines = sonde_cli("requests", "program.py").stdout.splitlines()
    (slow,) = [line for line in lines if line.startswith("task shop.resize")]
    (failed,) = [line for line in lines if line.startswith("task shop.fail")]
    assert slow.split()[2] == "3" and failed.split()[-2] == "1"
    assert any("time.sleep, called by resize (" in line for line in lines)


DASK = """
import dask, time
@dask.delayed
def parse(n): return sum(i * i for i in range(300_000))
@dask.delayed
def add(parts): return sum(parts)
add([parse(n) for n in range(8)]).compute(scheduler="threads", num_workers=2)
"""


def test_dask_which_function_the_threads_are_in(run, sonde_cli) -> None:
    pytest.importorskip("dask")
    run(DASK, **RECORDED)
    lines = sonde_cli("tree", "program.py", "--sort", "working").stdout.splitlines()
    assert any("parse" in line and "program.py:4" in line for line in lines)


NOTEBOOK = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
shown = []
def hook(message):
    if message["msg_type"] in ("execute_result", "display_data"):
        shown.append(message["content"]["data"].get("text/html", ""))
try:
    client.execute_interactive("%load_ext sonde", output_hook=hook, timeout=200)
    cell = "%%sonde\\ndef slow():\\n    return sum(i * i for i in range(8_000_000))\\nslow()"
    client.execute_interactive(cell, output_hook=hook, timeout=200)
finally:
    client.stop_channels(); manager.shutdown_kernel(now=True)
print("\\n".join(shown))
"""


def test_jupyter_where_the_time_of_a_cell_went(run) -> None:
    pytest.importorskip("ipykernel"), pytest.importorskip("jupyter_client")
    shown = run(NOTEBOOK, SONDE_COLLECTOR="off").stdout
    assert "<table>" in shown and "slow" in shown


@pytest.mark.parametrize("tool", ["pytest", "mypy"])
def test_a_tool_keeps_its_exit_code_and_shows_where_its_time_went(
    tool: str, tmp_path: Path, root: Path, sonde_cli
) -> None:
    pytest.importorskip(tool)
    (tmp_path / "test_slow.py").write_text(
        "def build() -> int:\n    return sum(i * i for i in range(4_000_000))\n\n\n"
        "def test_it() -> None:\n    assert build() == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "run", "-m", tool, "test_slow.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "SONDE_COLLECTOR": "off", "PYTEST_ADDOPTS": "-p no:cacheprovider"},
    )  # fmt: skip
    shown = sonde_cli("tree", tool).stdout
    if tool == "pytest":
        assert done.returncode == 1 and "1 failed" in done.stdout
        assert "build" in shown and "test_slow.py:2" in shown
    else:
        assert done.returncode == 0, done.stderr
        assert "mypy" in shown
