"""Make the pictures of docs/ anew: `python release/pictures.py`, or with some of their names.

Each is of a real program that is recorded for it, here and now: a busy machine shows in them. What
they need, and the checkout itself, is installed in the Python that runs this; a browser is
chromium-headless-shell."""

from __future__ import annotations

import fcntl
import html
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests"))
from support.devtools import Browser  # noqa: E402

DOCS = TOP / "docs"
PORT = 8127
COLOURS = {"1": "font-weight:bold", "2": "color:#8a8aa0", "36": "color:#94e2d5",
           "31": "color:#f38ba8", "32": "color:#a6e3a1", "33": "color:#f9e2af"}  # fmt: skip

SHOP = """
import json, os, time

ORDERS = [{"id": n, "name": f"thing {n}", "lines": list(range(n % 9))} for n in range(400)]

def has_slow_disk():
    try:
        os.close(os.open("slow", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

SLOW = []

def read_prices():
    if not SLOW:
        SLOW.append(has_slow_disk())
    if SLOW[0]:
        time.sleep(0.15)
    return {order["id"]: sum(order["lines"]) for order in ORDERS}

def render(orders, prices):
    return json.dumps([{**order, "price": prices[order["id"]]} for order in orders])

def app(environ, start_response):
    text = render(ORDERS, read_prices())
    start_response("200 OK", [("Content-Type", "application/json")])
    return [text.encode()]
"""
DJANGO = """
import django
from django.conf import settings
settings.configure(
    ROOT_URLCONF="books", ALLOWED_HOSTS=["*"], SECRET_KEY="x", DEBUG=False, INSTALLED_APPS=[],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "books.sqlite"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": ["."]}],
)
django.setup()
from django.core.wsgi import get_wsgi_application
from django.db import connection, models
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import path

class Author(models.Model):
    name = models.TextField()
    class Meta: app_label = "books"

class Book(models.Model):
    title = models.TextField()
    author = models.ForeignKey(Author, models.CASCADE)
    class Meta: app_label = "books"

def describe(book):
    return f"{book.title} by {book.author.name}"

def list_books(request):
    rows = [describe(book) for book in Book.objects.all()]
    return HttpResponse("".join(rows))

def page(request):
    return render(request, "books.html", {"books": Book.objects.all()})

urlpatterns = [path("list", list_books), path("page", page)]
app = get_wsgi_application()

def fill():
    with connection.schema_editor() as editor:
        editor.create_model(Author), editor.create_model(Book)
    for n in range(60):
        Book.objects.create(title=f"Book {n}", author=Author.objects.create(name=f"A. {n}"))
"""
TEMPLATE = "{% for book in books %}{{ book.title }} by {{ book.author.name }}{% endfor %}"
HANG = """
import queue, threading, time

stock, prices, orders = threading.Lock(), threading.Lock(), queue.Queue()


def reserve():
    with stock:
        time.sleep(0.2)
        with prices:
            orders.put("reserved")


def discount():
    with prices:
        time.sleep(0.2)
        with stock:
            orders.put("cheaper")


for work in (reserve, discount):
    threading.Thread(target=work, name=work.__name__).start()
print(orders.get())
"""
TRAIN = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def decode(text):
    return torch.tensor([float(word) for word in text.split(",")])


class Rows(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        return decode(",".join(str((at * n) % 97) for n in range(512)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        inner = 2 * width
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def main(seconds):
    net = nn.Sequential(Block(512), Block(512), nn.Linear(512, 1))
    opt = torch.optim.AdamW(net.parameters(), fused=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for batch in DataLoader(Rows(), batch_size=64):
            loss = net(batch).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            if time.monotonic() > end:
                break


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(float(sys.argv[1]))
"""
CELL = """%%sonde
import csv, io, json, time

def fetch():
    time.sleep(0.4)                      # a slow server
    return "a,b\\n" + "1,2\\n" * 60_000

def clean(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    return [json.loads(json.dumps(row)) for row in rows]

rows = clean(fetch())"""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; background: #181825; color: #cdd6f4; width: max-content }
pre { margin: 0; padding: 20px 28px; font: 22px/30px "DejaVu Sans Mono", monospace }
</style><pre>"""
BOOK = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 12px 24px 24px; width: 952px; font: 14px/1.5 "DejaVu Sans", sans-serif }
.row { display: flex; margin: 10px 0 }
.row > b { width: 75px; flex: none; font: 13px "DejaVu Sans Mono"; color: #999; padding-top: 6px }
pre { flex: 1; margin: 0; padding: 5px; background: #f5f5f5; border: 1px solid #e0e0e0;
  font: 13px/17px "DejaVu Sans Mono", monospace }
table { border-collapse: collapse; font-size: 13px; margin: 0 0 14px }
th, td { text-align: left; padding: 4px 7px }
th { border-bottom: 1px solid #bbb } tr:nth-child(even) td { background: #f5f5f5 }
</style>"""


# ---- programs ------------------------------------------------------------------------------------


@contextmanager
def serve(folder: Path, app: str, workers: int) -> Iterator[None]:
    """Record a server of gunicorn that is asked all the time."""
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-w", str(workers), "-b", f"127.0.0.1:{PORT}", app],
        cwd=folder, env={**os.environ, "SONDE": "1"}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def ask(paths: list[str], seconds: float, pause_s: float, clients: int = 4) -> None:
    """Ask a server for these paths, with so many clients, for so long."""
    end = time.monotonic() + seconds

    def go() -> None:
        while time.monotonic() < end:
            for path in paths:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{path}", timeout=30).read()
                except (OSError, urllib.error.URLError):
                    time.sleep(0.2)
            time.sleep(pause_s)

    threads = [threading.Thread(target=go) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def sonde(*words: str, folder: Path) -> str:
    """Return what a command of sonde writes."""
    command = [sys.executable, "-m", "sonde", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def show(folder: Path, columns: int, *words: str) -> str:
    """Return what a command of sonde writes to a terminal of so many columns, with its colours."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = {
        key: text for key, text in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", *words], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=follower, stderr=subprocess.DEVNULL, env={**environment, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(follower)
    found = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        found += more
    process.wait(60)
    os.close(leader)
    return found.decode().replace("\r\n", "\n")


# ---- pictures ------------------------------------------------------------------------------------


def keep(browser: Browser, name: str) -> None:
    """Write what the browser shows as a picture, in few colours."""
    path = DOCS / f"{name}.png"
    browser.picture(path)
    from PIL import Image

    small = io.BytesIO()
    Image.open(path).convert("RGB").quantize(128).save(small, "PNG", optimize=True)
    path.write_bytes(small.getvalue())
    print(f"{path}: {len(small.getvalue()):,} bytes")


def draw_page(browser: Browser, page: Path, name: str, width: int, height: int) -> None:
    browser.size(width, height)
    browser.open(page.as_uri())
    browser.wait("document.body.dataset.ready === 'all'")
    keep(browser, name)


def draw_html(browser: Browser, folder: Path, text: str, name: str) -> None:
    """Draw a page of our own as large as it is."""
    page = folder / f"{name}.html"
    page.write_text(text, encoding="utf-8")
    browser.size(2400, 1600)
    browser.open(page.as_uri())
    browser.wait("document.readyState === 'complete' && document.body.offsetHeight > 0")
    width, height = (browser.run(f"document.body.offset{one}") for one in ("Width", "Height"))
    browser.size(int(str(width)), int(str(height)))
    keep(browser, name)


def draw_terminal(browser: Browser, folder: Path, columns: int, name: str, *words: str) -> None:
    """Draw a command with its answer, as a terminal shows them."""
    parts = re.split(r"\x1b\[([\d;]*)[mK]", show(folder, columns, *words))
    text, style = html.escape(parts[0]), ""
    for codes, part in zip(parts[1::2], parts[2::2], strict=True):
        if codes in ("", "0"):
            style = ""
        else:
            style += "".join(COLOURS.get(code, "") + ";" for code in codes.split(";"))
        text += f'<span style="{style}">{html.escape(part)}</span>'
    command = html.escape(" ".join(["sonde", *words]))
    draw_html(browser, folder, f"{TERMINAL}$ {command}\n{text.rstrip()}</pre>", name)


def make_shop(browser: Browser, folder: Path) -> None:
    """tree.png and web.png: one of four workers reads prices from a slow disk."""
    (folder / "shop.py").write_text(SHOP.lstrip())
    with serve(folder, "shop:app", 4):
        ask([""], 60, 0.02)
        draw_terminal(browser, folder, 100, "tree", "tree", "gunicorn")
    sonde("report", "gunicorn", "-o", "shop.html", folder=folder)
    draw_page(browser, folder / "shop.html", "web", 1440, 900)


def make_django(browser: Browser, folder: Path) -> None:
    """django.png: two views, each with one query for each book."""
    (folder / "books.py").write_text(DJANGO.lstrip())
    (folder / "books.html").write_text(TEMPLATE)
    subprocess.run([sys.executable, "-c", "import books; books.fill()"], cwd=folder, check=True)
    with serve(folder, "books:app", 1):
        ask(["list", "page"], 30, 0.05, clients=1)
        draw_terminal(browser, folder, 116, "django", "tree", "gunicorn")


def make_stacks(browser: Browser, folder: Path) -> None:
    """stacks.png: two threads that wait for each other."""
    (folder / "hang.py").write_text(HANG.lstrip())
    job = subprocess.Popen(
        [sys.executable, "hang.py"], cwd=folder, env={**os.environ, "SONDE": "1"}
    )
    time.sleep(9)
    draw_terminal(browser, folder, 98, "stacks", "stacks", str(job.pid))
    job.kill()
    job.wait()


def make_train(browser: Browser, folder: Path) -> None:
    """page.png: a training loop that waits for data."""
    (folder / "train.py").write_text(TRAIN.lstrip())
    command = [sys.executable, "-m", "sonde", "run", "train.py", "75"]
    subprocess.run(command, cwd=folder, check=True)
    sonde("report", "train.py", "-o", "train.html", folder=folder)
    draw_page(browser, folder / "train.html", "page", 1440, 900)


def make_notebook(browser: Browser, folder: Path) -> None:
    """notebook.png: a cell, and below it where its time went."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in ("%load_ext sonde", CELL)]
    NotebookClient(book, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    text = BOOK
    for number, cell in enumerate(book.cells, 1):
        text += f'<div class="row"><b>In [{number}]:</b><pre>{html.escape(cell.source)}</pre></div>'
        for output in cell.outputs:
            shown = output.get("data", {}).get("text/html", "")
            shown = shown.replace(os.environ["SONDE_DIR"], "/tmp/sonde-1000")
            text += f'<div class="row"><b>Out[{number}]:</b><div>{shown}</div></div>'
    draw_html(browser, folder, text, "notebook")


MAKERS = {"shop": make_shop, "django": make_django, "stacks": make_stacks, "train": make_train,
          "notebook": make_notebook}  # fmt: skip


def main(names: list[str]) -> int:
    """Make all pictures, or those of some programs; return the exit code."""
    for name in names or MAKERS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            folder = Path(place)
            (folder / "job").mkdir()
            os.environ["SONDE_DIR"] = str(folder / "sessions")
            with Browser(folder / "profile") as browser:
                MAKERS[name](browser, folder / "job")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
