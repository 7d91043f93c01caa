"""The page of an hour of eight threads at 100 Hz, in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import child
from result import Result

_TESTS = Path(__file__).resolve().parent.parent / "tests"
_PAINT = (
    "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)[0] || null"
)
# From the change of the brush to the flame graph as it is then laid out.
_BRUSH = """
(() => { const begin = performance.now();
setBrush(SHARE[0] * time.pieces, SHARE[1] * time.pieces);
flame.box.getBoundingClientRect(); return performance.now() - begin; })()"""
_SHARES = ("[0.1, 0.2]", "[0.2, 0.9]", "[0, 1]", "[0.4, 0.5]", "[0.05, 0.95]")
_JUDGED = "find('verdict').className || find('verdict').textContent.includes('No verdict')"


def measure(rounds: int) -> list[Result]:
    """Milliseconds in the browser, and the memory of the server after that."""
    sys.path.insert(0, str(_TESTS))
    from support.devtools import Browser

    with child.open_root() as root, tempfile.TemporaryDirectory() as profile:
        made = subprocess.run([sys.executable, str(Path(__file__).parent / "hour.py")], check=True,
                              capture_output=True, text=True,
                              env={**os.environ, "SONDE_DIR": root})  # fmt: skip
        with _serve(made.stdout.strip(), root) as (server, link), Browser(Path(profile)) as page:
            page.size(1440, 900)
            paints, stacks, early, brushes = [], [], [], []
            for _ in range(max(2, rounds)):
                begin = time.perf_counter()
                page.open(link)
                page.wait("document.body && document.body.dataset.ready")
                stacks.append(1000 * (time.perf_counter() - begin))
                paints.append(page.run(_PAINT))
                page.wait("document.body.dataset.ready === 'all'")
                for share in _SHARES:  # the verdict takes seconds
                    page.wait("late.size === 0")
                    if not page.run(_JUDGED):
                        early.append(page.run(_BRUSH.replace("SHARE", share)))
                page.wait(_JUDGED)
                for share in _SHARES:
                    page.wait("late.size === 0")
                    brushes.append(page.run(_BRUSH.replace("SHARE", share)))
            memory = _read_memory(server.pid)
    sys.path.remove(str(_TESTS))
    return [
        Result("page of an hour: first paint", "ms", paints, 1000),
        Result("page of an hour: stacks are there", "ms", stacks),
        Result("page of an hour: brush to flame graph", "ms", brushes, 150),
        Result("page of an hour: slowest brush to flame graph", "ms", [max(early + brushes)]),
        Result("page of an hour: the same while it is judged", "ms", early, 150),
        Result("page of an hour: memory of the server", "MB", [memory], 300),
    ]


@contextmanager
def _serve(folder: str, root: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "ui", folder, "--no-browser"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env={**os.environ, "SONDE_DIR": root},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


def _read_memory(pid: int) -> float:
    """The resident memory of a process now, in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
