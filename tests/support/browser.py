"""A real browser without a screen, and the pages that tests open in it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
_FLAGS = ("--no-sandbox", "--headless", "--window-size=1280,720")
# Graphics without a graphics card: most pages draw nothing with it, and it takes long to start.
_WEBGL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")


def find_browser() -> str:
    """A browser, or the end of the test: pip cannot install one."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no chromium here")
    return found


def find_outside(variable: str, what: str) -> Path:
    """A reader that pip cannot install, named by the environment."""
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} does not name {what}")
    return Path(path)


def dump(url: str, *, webgl: bool = False) -> str:
    """The page once its scripts have settled, as HTML."""
    graphics = _WEBGL if webgl else ("--disable-gpu",)
    done = subprocess.run(
        [find_browser(), *_FLAGS, *graphics, "--virtual-time-budget=15000", "--dump-dom", url],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def drive(path: Path, script: str) -> dict[str, object]:
    """What an async function body returns when it runs in a page, once that page is ready."""
    driver = """
<script>addEventListener("load", async () => {
  const wait = () => new Promise((done) => setTimeout(done, 20));
  const until = async (test) => { while (!test()) await wait(); };
  const said = { errors: [] };
  window.alert = () => said.errors.push("alert");
  addEventListener("error", (event) => said.errors.push(event.message));
  try { Object.assign(said, await (async () => { SCRIPT })()); }
  catch (error) { said.errors.push(String(error)); }
  const place = document.createElement("pre");
  place.id = "said";
  place.textContent = JSON.stringify(said);
  document.documentElement.append(place);
})</script>"""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".svg":  # inside a page, as a browser shows it
        text = f"<!doctype html><body>{text[text.index('<svg') :]}</body>"
    copy = path.with_suffix(".driven.html")
    copy.write_text(text + driver.replace("SCRIPT", script), encoding="utf-8")
    found = re.search(r'<pre id="said">(.*?)</pre>', dump(copy.as_uri()), re.DOTALL)
    assert found, "the page said nothing"
    return json.loads(html.unescape(found[1]))
