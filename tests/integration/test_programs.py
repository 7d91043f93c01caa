"""Real programs, where they are installed, asked what their users ask: `make frameworks`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import list_sessions

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
import functools, os, time
def fetch_slowly(): time.sleep(0.3)
@functools.cache
def is_slow():
    try: os.close(os.open("slow", os.O_CREAT | os.O_EXCL))
    except FileExistsError: return False
    return True
def app(environ, start_response):
    if is_slow(): fetch_slowly()  # one of four workers
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"slow" if is_slow() else b"fast"]
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
            seen: list[bytes] = []

            def ask(_number: int) -> None:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                    seen.append(answer.read())

            with ThreadPoolExecutor(4) as many:
                wait_for(lambda: list(many.map(ask, range(20))) and seen.count(b"slow") > 12)
            shown = sonde_cli("top", "gunicorn", "--once", "--window", "5min").stdout
            assert "fast" in map(bytes.decode, seen)
            differs = [line for line in shown.splitlines() if "% in fetch_slowly" in line]
            assert len(differs) == 1 and "shop.py:3" in differs[0], shown
            slow_pid = differs[0].split()[0]
            advice = sonde_cli("advise", "gunicorn").stdout
            assert "fetch_slowly (shop.py:3)" in advice, advice
            assert f"only in process {slow_pid}, not in 3 others that work alike" in advice, advice
            requests = sonde_cli("requests", "gunicorn").stdout
            assert "GET shop.app " in requests
            assert "waiting in time.sleep, called by fetch_slowly (" in requests
        finally:
            os.killpg(server.pid, signal.SIGKILL)


ASGI = """
import asyncio
async def app(scope, receive, send):
    if scope["type"] != "http": return
    if scope["path"] == "/fails": raise KeyError("no such order")
    await asyncio.sleep(0.02)
    await send({"type": "http.response.start", "status": 202, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})
def plain(environ, start_response):
    start_response("201 Created", [("Content-Type", "text/plain")])
    return [b"done"]
"""
ASGI_SERVERS = {
    "gunicorn": "gunicorn -k asgi -b 127.0.0.1:{port} shop:app",
    "hypercorn": "hypercorn -b 127.0.0.1:{port} shop:app",
    "hypercorn-wsgi": "hypercorn -b 127.0.0.1:{port} shop:plain",
    "daphne": "daphne -p {port} shop:app",
}


@pytest.mark.parametrize("server", ASGI_SERVERS)
def test_a_server_for_asgi_shows_the_requests_of_a_plain_application(
    tmp_path: Path, root: Path, server: str
) -> None:
    pytest.importorskip(server.partition("-")[0])
    (tmp_path / "shop.py").write_text(ASGI)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", *ASGI_SERVERS[server].format(port=port).split()]

    def ask(path: str) -> int | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None  # it does not listen yet

    def read() -> list[tuple[object, ...]]:
        folders = [one.folder for one in list_sessions(os.environ["SONDE_DIR"])]
        sql = "SELECT framework, route, status, error FROM python.request ORDER BY t_ns"
        return [tuple(row.values()) for row in sonde.open(folders).query(sql).to_pylist()]

    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **RECORDED}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            is_plain = "shop:plain" in command
            wait_for(lambda: ask("/order/7") == (201 if is_plain else 202))
            if is_plain:
                wait_for(lambda: read() == [("wsgi", "shop.plain", 201, None)])
                return
            assert ask("/fails") == 500
            wait_for(lambda: len(read()) == 2)
            assert read() == [
                ("asgi", "shop.app", 202, None), ("asgi", "shop.app", None, "KeyError"),
            ]  # fmt: skip
        finally:
            os.killpg(process.pid, signal.SIGKILL)


CELERY = """
import time
from celery import Celery
folders = ("data_folder_in", "data_folder_out", "processed_folder", "control_folder")
app = Celery("shop", broker="filesystem://", broker_transport_options=dict.fromkeys(folders, "."))
def fetch_picture(n): time.sleep(0.2)
@app.task
def resize(n): fetch_picture(n); return n
@app.task
def fail(): raise KeyError("no such order")
if __name__ == "__main__":
    for n in range(3): app.send_task("shop.resize", [n])
    app.send_task("shop.fail")
"""


def test_celery_which_task_is_slow_and_which_fails(tmp_path: Path, root: Path, sonde_cli) -> None:
    pytest.importorskip("celery")
    (tmp_path / "shop.py").write_text(CELERY)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=240)
    told = tmp_path / "told"
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "2", "-l", "info",
               "-f", str(told)]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, **RECORDED}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as worker:  # fmt: skip
        try:
            done = ("succeeded in", "raised unexpected")
            wait_for(lambda: told.exists() and sum(map(told.read_text().count, done)) == 4)
            lines = sonde_cli("requests", "celery").stdout.splitlines()
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
    (slow,) = [line for line in lines if line.startswith("task shop.resize")]
    (failed,) = [line for line in lines if line.startswith("task shop.fail")]
    assert slow.split()[2] == "3" and failed.split()[-2] == "1"
    called = "time.sleep, called by fetch_picture (shop.py:6), called by resize (shop.py:8)"
    assert any(called in line for line in lines)


FETCHES = """
import http.server, json, sys, threading, time, urllib.request
class Prices(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(float(sys.argv[1]))
        self.send_response(200); self.end_headers(); self.wfile.write(b"[1, 2]")
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Prices)
threading.Thread(target=server.serve_forever, daemon=True).start()
def fetch(): return urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read()
def parse(): return [json.loads("[1, 2, 3]" * 1) for _ in range(4_000)]
for _ in range(160): fetch(); parse()       # recordings of less than five seconds are not compared
"""


def test_compare_which_function_waits_longer_than_before(run, sonde_cli) -> None:
    run(FETCHES, "0.02", **RECORDED)
    run(FETCHES, "0.1", **RECORDED)
    before, after = [one.folder for one in list_sessions(os.environ["SONDE_DIR"])]
    shown = sonde_cli("compare", before, after).stdout
    longer = [line for line in shown.splitlines() if "fetch (" in line and "waiting" in line]
    assert any("worse" in line for line in longer), shown
    # Names of the same time, of which any may be a little longer: the server is in this program.
    names = ("fetch (", "Prices.do_GET (", "waiting for data from a socket")
    assert any(name in shown.splitlines()[0] for name in names), shown


POOL = """
import multiprocessing, sys, time
def parse(n): return sum(i * i for i in range(3_000_000))
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        pool.map(parse, range(8), chunksize=1)
        pool.close()
        pool.join()
"""


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_pool_is_one_job_and_names_what_its_workers_do(run, sonde_cli, way: str) -> None:
    run(POOL, way, **RECORDED)
    (first, *rest) = json.loads(sonde_cli("ps", "--format", "json").stdout)
    assert len(rest) == 2 and {row["job"] for row in rest} == {first["job"]}
    lines = sonde_cli("tree", first["job"], "--sort", "working").stdout.splitlines()
    assert any("parse" in line and "program.py:3" in line for line in lines)


EXECUTOR = """
import concurrent.futures, sys, time
def parse(n): return sum(i * i for i in range(3_000_000))
def fetch(n): time.sleep(0.1); return parse(n)
if __name__ == "__main__":
    with getattr(concurrent.futures, sys.argv[1])(2) as pool: list(pool.map(fetch, range(6)))
"""


@pytest.mark.parametrize("way", ["ThreadPoolExecutor", "ProcessPoolExecutor"])
def test_an_executor_which_function_waits_and_which_computes(run, sonde_cli, way: str) -> None:
    run(EXECUTOR, way, **RECORDED)
    lines = sonde_cli("tree", "program.py").stdout.splitlines()
    assert any("parse" in line and "program.py:3" in line for line in lines)
    assert any("time.sleep" in line and "program.py:4" in line for line in lines)


DISTRIBUTED = """
import time
from dask.distributed import Client, LocalCluster
def parse(n): return sum(i * i for i in range(300_000))
def merge(parts): time.sleep(0.5); return sum(parts)
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            parts = client.map(parse, range(10))
            print(client.submit(merge, parts).result())
"""


def test_dask_with_workers_which_function_they_are_in(run, sonde_cli) -> None:
    pytest.importorskip("distributed")
    run(DISTRIBUTED, **RECORDED)
    lines = sonde_cli("tree", "program.py", "--limit", "0").stdout.splitlines()
    assert any("parse" in line and "program.py:4" in line for line in lines)
    assert any("time.sleep" in line and "program.py:5" in line for line in lines)
    assert not [line for line in lines if "spawn_main" in line]


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
import nbformat
from nbclient import NotebookClient
book = nbformat.v4.new_notebook()
cells = ("%load_ext sonde", "%%sonde\\nimport time\\ndef slow():\\n"
         "    return sum(i * i for i in range(4_000_000))\\nslow()\\ntime.sleep(0.3)",
         "import sonde; sonde.start(collector='off')\\nslow()", "%sonde tree")
book.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
NotebookClient(book, timeout=200, kernel_name="python3").execute()
for cell in book.cells:
    for output in cell.outputs:
        if output.output_type == "stream": print(output.text)
        if output.output_type == "execute_result": print(*output.data.values(), sep="\\n")
"""


def test_jupyter_where_the_time_of_a_cell_went(run) -> None:
    pytest.importorskip("ipykernel"), pytest.importorskip("nbclient")
    shown = run(NOTEBOOK, SONDE_COLLECTOR="off").stdout
    assert "<table>" in shown and "line   4  slow()" in shown
    assert "line   5  time.sleep(0.3)" in shown and "line   3  return sum(i * i" in shown
    tree = shown.partition("   total  share")[2].splitlines()
    assert any("slow" in line and "ipykernel_" in line for line in tree), shown


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
        # What mypyc has compiled has no frames of Python; Python 3.10 knows no calls of C.
        assert ("mypy.main.main" if sys.version_info >= (3, 11) else "  mypy") in shown
