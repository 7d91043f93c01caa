"""The page in a real browser: what it shows is what SQL says, live, afterwards, and in one file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.analysis.window import Window
from sonde.session import Session
from sonde.session.files import SEALED
from sonde.web.opened import Opened
from sonde.web.report import make_report
from support.browser import find_browser
from support.devtools import Browser
from support.handmade_machine import OFF, Machine
from support.handmade_model import Job, make_gpt
from support.handmade_page import PIECES, RANKS, S, make_large_page

# Names meant to harm: HTML, text that runs backwards, control characters, ten thousand letters.
JOB = r"""
import select, sonde, sys, threading, time
sonde.start()
HOSTILE = ["</script><img src=x onerror=boom()>", "\u202egnorw\u202c", "a\x1b[31m\x00b", "x" * 10_000, "<b>bold</b>"]
def name(work, text):
    code = work.__code__
    more = {"co_qualname": text} if hasattr(code, "co_qualname") else {}
    work.__code__ = code.replace(co_name=text, **more)
    return work
def burn(): sum(range(20_000))
def rest(): time.sleep(0.01)
def outer(inner):
    def call(): inner()
    return call
works = [name(outer(burn), text) for text in HOSTILE]
over = threading.Event()
def work():
    while not over.is_set():
        for one in works: one()
        rest()
thread = threading.Thread(target=work, name=HOSTILE[0])
thread.start()
lock = threading.RLock()
def fail(): raise LookupError(HOSTILE[0])
def enter():
    with lock: pass
threading.Thread(target=fail).start()
for text in HOSTILE:
    with sonde.span(text, shard=1): sonde.mark(text); sonde.counter(text, 3)
with lock:
    waiter = threading.Thread(target=enter, name="waiter"); waiter.start()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.05)[0]: pass
over.set(); waiter.join(); thread.join()
"""
# Two processes, the second when it is told to; both run until they are killed.
PAIR = """
import subprocess, sys, time, sonde
sonde.start()
def dig(): sum(range(5000))
if sys.argv[1:] != ["child"]:
    print("ready", flush=True)
    sys.stdin.readline()
    print(subprocess.Popen([sys.executable, __file__, "child"]).pid, flush=True)
while True: dig(); time.sleep(0.002)
"""
CLOSE = "find('dialog').close()"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    find_browser()
    with Browser(tmp_path / "profile") as one:
        one.size(1440, 900)
        yield one


@pytest.fixture
def serve() -> Iterator[object]:
    started: list[subprocess.Popen[str]] = []

    def start(target: str, *more: str) -> tuple[subprocess.Popen[str], str]:
        words = [
            sys.executable,
            "-m",
            "sonde",
            "ui",
            target,
            "--no-browser",
            "--allow-steer",
            *more,
        ]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().split()[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_sum(recording: sonde.Recording, expression: str, where: str = "TRUE") -> int:
    sql = (
        f"SELECT COALESCE(SUM({expression}), 0)::BIGINT AS n FROM python.stack_sample WHERE {where}"
    )
    return recording.query(sql)["n"][0].as_py()


def read_whole(browser: Browser) -> int:
    """The time that the flame graph is of."""
    return int(browser.run("+flame.note.dataset.ns"))


def test_the_page_of_a_job_from_live_to_the_end_of_its_server(
    browser: Browser, serve, tmp_path: Path
) -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout.readline() == "ready\n"
        server, link = serve(str(job.pid))
        browser.open(link)
        browser.wait("document.body.dataset.ready === 'all'")
        _see_live(browser)
    finally:
        job.communicate(timeout=120)
    browser.wait("find('status').textContent.includes('ended')")
    recording = sonde.open(job.pid)
    wait_for(Path(recording.sessions[0].folder, SEALED).exists)
    browser.open(link)  # nothing comes any more: all numbers stand
    browser.wait("document.body.dataset.ready === 'all'")
    _see_sums(browser, recording)
    _see_brush(browser, recording)
    _see_marks(browser, recording)
    _see_search(browser, recording)
    _see_difference(browser)
    _see_another_recording(browser, recording)
    _see_hand_over(browser)
    _see_sql(browser)
    _see_verdict(browser)
    _see_names(browser)
    before = browser.run("setState({idle: true, from: null, to: null}); +flame.note.dataset.ns")
    _see_file(browser, recording, tmp_path, before)
    _see_server_killed(browser, server, link)
    assert browser.said == [], browser.said


def _see_live(browser: Browser) -> None:
    """The time goes on, the picture with it; and it can be held."""
    assert browser.wait("find('status').textContent.startsWith('live')")
    first = browser.run("time.until")
    browser.wait(f"time.until > {first} + 1.5e9 && now.found.groups.length")
    held = browser.wait(
        "(now.found.groups.find(one => one.threads.some(thread => thread.name === 'waiter')) || {}).wait"
    )
    assert '"MainThread" holds, taken at <string>:' in str(held)
    browser.wait("machine.charts.length")
    browser.run("find('follow').click()")
    assert browser.run("state.hold") is True
    browser.run("find('follow').click()")
    browser.wait("!find('look').hidden && !find('look').disabled")
    browser.run("find('look').click()")
    assert "one = <" in str(browser.wait("find('looked') && find('looked').textContent"))
    browser.run("find('config').click()")
    key = "document.querySelector('[data-key=\"stack.every\"]')"
    browser.wait(f"!!{key}")
    browser.run(f"{key}.value = 'never'; {key}.nextElementSibling.click()")
    browser.wait("find('settings-note').className === 'grew'")
    browser.run(f"{key}.value = '5ms'; {key}.nextElementSibling.click()")
    browser.wait(
        f"find('settings-note').textContent.startsWith('A change') && {key}.value === '5ms'"
    )
    browser.run(CLOSE)
    browser.said[:] = [one for one in browser.said if "400" not in one]


def _see_sums(browser: Browser, recording: sonde.Recording) -> None:
    browser.run("setState({idle: true})")
    assert read_whole(browser) == read_sum(recording, "wall_ns")
    browser.run("setState({weight: 'cpu'})")
    assert read_whole(browser) == read_sum(recording, "cpu_ns")
    browser.run("setState({weight: 'gil'})")
    assert read_whole(browser) == read_sum(recording, "wall_ns", "gil")
    browser.run("setState({weight: 'wall'})")
    sql = """
    SELECT SUM(wall_ns)::BIGINT AS n FROM python.stack_sample
    WHERE stack IN (SELECT stack FROM python.frame WHERE func = 'work')"""
    frame = "+document.querySelector('.frame[data-name=\"work\"]').dataset.ns"
    assert browser.run(frame) == recording.query(sql)["n"][0].as_py()
    lines = (
        "[...document.querySelectorAll('[data-table=lines] tr[data-ns]')].map(r => +r.dataset.ns)"
    )
    browser.wait(f"{lines}.reduce((sum, one) => sum + one, 0) === {read_sum(recording, 'wall_ns')}")
    lost = recording.query(
        "SELECT SUM(dropped + unfinished + overwritten + corrupt)::BIGINT AS n FROM sonde.loss"
    )
    browser.wait("!!find('lost')")
    assert browser.run("find('lost').textContent") == str(lost["n"][0].as_py())
    browser.wait("machine.charts.length")
    busy = recording.query("SELECT AVG(busy_pct) AS n FROM system.cpu")["n"][0].as_py()
    line = "machine.charts.find(c => c.title === 'CPU, machine').lines.find(l => l.name === 'busy').values"
    shown = browser.run(line)
    assert min(shown) <= busy <= max(shown) + 0.001
    browser.run("document.querySelector('#flame .how').click()")
    assert "python.stack_sample" in str(
        browser.run("document.querySelector('.statement').textContent")
    )
    browser.run(CLOSE)


def _see_brush(browser: Browser, recording: sonde.Recording) -> None:
    """A drag on the ribbon; all panels follow, the address keeps it, and SQL says the same."""
    box = browser.run("(b => [b.left, b.width, b.top])(ribbon.canvas.getBoundingClientRect())")
    left, width, top = box
    browser.drag(left + 0.25 * width, left + 0.6 * width, top + 40)
    since, until = browser.run("[state.from, state.to]")
    assert 0 < since < until
    base = int(browser.run("about.base_ns"))
    offset = recording.sessions[0].wall_offset_ns
    moment = f"t_ns + {offset} - {base}"
    inside = f"{moment} > {since} AND {moment} <= {until}"
    assert read_whole(browser) == read_sum(recording, "wall_ns", inside)
    assert f"from={since}" in str(browser.run("makeAddress()"))
    assert browser.run("find('chips').children.length") == 1
    browser.run("ribbon.canvas.focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert browser.run("state.from - time.width") == since
    thread = browser.run("names.threads[0].thread")
    browser.run(f"setState({{thread: {thread}, from: null, to: null}})")
    assert read_whole(browser) == read_sum(recording, "wall_ns", f"thread = {thread}")
    browser.run("setState({thread: null})")


def _see_marks(browser: Browser, recording: sonde.Recording) -> None:
    """Exceptions, locks, collections and markers are signs below the time, and a list."""
    assert browser.run("ribbon.lane.querySelectorAll('.exception, .lock, .marker').length") >= 3
    browser.run("find('list-marks').click()")
    texts = browser.run("[...document.querySelectorAll('#dialog tr')].map(r => r.textContent)")
    [wait] = [text for text in texts if "⊗ lock" in text]
    assert "waiter waits for a lock (RLock) that MainThread holds, taken in <module>" in wait
    assert any("▲ uncaught exception" in text and "LookupError" in text for text in texts)
    waits = recording.query(
        "SELECT DISTINCT thread, since_ns FROM python.lock_wait WHERE holder >= 0"
    )
    assert browser.run("ribbon.marks.counts.lock") == waits.num_rows == 1
    pauses = recording.query("SELECT COUNT(*) AS n FROM python.gc_pause WHERE dur_ns >= 5e6")
    assert browser.run("ribbon.marks.counts.gc || 0") == pauses["n"][0].as_py()
    lock = "ribbon.marks.marks.find(one => one.kind === 'lock')"
    browser.run(f"find('dialog').close(); brushMark({lock})")
    assert browser.run(f"state.from <= {lock}.at && state.to >= {lock}.at + {lock}.dur_ns") is True
    browser.run("setState({from: null, to: null})")


def _see_search(browser: Browser, recording: sonde.Recording) -> None:
    browser.run("setState({search: 'burn'})")
    sql = """
    SELECT SUM(wall_ns)::BIGINT AS n FROM python.stack_sample
    WHERE stack IN (SELECT stack FROM python.frame WHERE func = 'burn')"""
    assert int(browser.run("+flame.search.dataset.ns")) == recording.query(sql)["n"][0].as_py()
    assert browser.run("document.querySelectorAll('.frame.hit').length") > 0
    owners = "[...document.querySelectorAll('#flame .owners span')].map(one => one.textContent)"
    assert browser.run(owners) == ["your code", "a library", "Python itself"]
    browser.run("setState({search: ''})")


def _see_difference(browser: Browser) -> None:
    browser.run(
        "setBrush(0, Math.floor(time.pieces / 2)); pin(); setBrush(Math.floor(time.pieces / 2), time.pieces)"
    )
    browser.wait("document.querySelectorAll('[data-table=change] tbody tr').length > 2")
    texts = browser.run(
        "[...document.querySelectorAll('[data-table=change] td:first-child')].map(c => c.textContent)"
    )
    assert any("▲" in one for one in texts) and any("▼" in one for one in texts)
    browser.run("pin(); setState({from: null, to: null, callers: true})")
    assert browser.run("document.querySelectorAll('.frame').length") > 2
    browser.run("setState({callers: false, threads: true})")
    assert browser.run("document.querySelectorAll('.frame').length") > 2
    browser.run("setState({threads: false})")


def _see_another_recording(browser: Browser, recording: sonde.Recording) -> None:
    """Against itself nothing differs, to the last frame; `sonde compare` is asked by a button."""
    browser.run(f"setState({{against: '{recording.sessions[0].id}'}})")
    browser.wait("!!base.set && !!document.querySelector('[data-table=change]')")
    shares = "flame.items.map(({node}) => [node.before, node.total / flame.sums.whole])"
    pairs = browser.run(shares)
    differ = [pair for pair in pairs if abs(pair[0] - pair[1]) > 1e-9]
    assert len(pairs) > 5 and not differ
    browser.run("find('compare').click()")
    browser.wait("lists.body.textContent.match(/more than noise;|too short|changed by more/)")
    browser.run("setState({against: ''})")
    browser.wait("!base.set && !document.querySelector('[data-table=change]')")
    browser.said[:] = [one for one in browser.said if "400" not in one]


def _see_hand_over(browser: Browser) -> None:
    """The brushed time, for another viewer: with all of its time in it, and how to open it."""
    browser.run(
        "saveText = (name, body) => { saved = [name, new TextDecoder().decode(body), flame.sums] }"
    )
    browser.run("setBrush(0, Math.floor(time.pieces / 2)); saveFor('speedscope')")
    assert "speedscope" in str(browser.wait("find('how') && find('how').textContent"))
    browser.run(CLOSE)
    name, text = browser.run("[saved[0], saved[1]]")
    assert name == "sonde.speedscope.json"
    profiles = json.loads(str(text))["profiles"]
    assert profiles and all(one["unit"] == "nanoseconds" for one in profiles)
    assert max(one["endValue"] - one["startValue"] for one in profiles) <= browser.run("state.to")
    browser.run("setState({from: null, to: null})")


def _see_sql(browser: Browser) -> None:
    browser.run(
        "sql.text.value = `SELECT 40 + 2 AS answer, '</td><script>boom()</script>' AS name`; runSql()"
    )
    browser.wait("!!find('result')")
    cells = browser.run("[...document.querySelectorAll('#result td')].map(c => c.textContent)")
    assert cells == ["42", "</td><script>boom()</script>"]
    browser.run(CLOSE)
    browser.run("sql.text.value = 'SELECT nothing FROM python.stack_sample'; runSql()")
    assert "nothing" in str(browser.wait("find('sql-error') && find('sql-error').textContent"))
    browser.run(CLOSE)
    # An answer that is an error of the user's own is in the browser's log, too.
    browser.said[:] = [one for one in browser.said if "400" not in one]


def _see_verdict(browser: Browser) -> None:
    browser.wait("find('verdict').className")
    assert browser.run("document.querySelector('#verdict h2').textContent")
    browser.run("document.querySelector('#verdict button').click()")
    assert browser.run("document.querySelectorAll('#dialog tr').length") > 5
    browser.run(CLOSE)
    _see_the_end_judged_first(browser)


def _see_the_end_judged_first(browser: Browser) -> None:
    """Of a recording of three hours, as far as the page can tell."""
    said = browser.run("""(async () => {
        const known = about, answer = await ask("advice"), asked = ask, said = [];
        about = { ...known, until: 3 * 3600e9, live: false };
        ask = async (name, { from, to } = {}) => {
            said.push(find("verdict").textContent.includes("last ten minutes"), to - from || "all");
            return { data: { advice: { ...answer.data.advice, thinned: "in parts" } } };
        };
        try { await judge(); } finally { ask = asked; about = known; }
        said.push(document.querySelector("#verdict [title='in parts']").textContent);
        return said; })()""")
    assert said[:4] == [False, 600e9, True, "all"]
    assert "looked at in parts" in said[4]


def _see_names(browser: Browser) -> None:
    """Hostile names are shown as text: no element is made of them, and no script runs."""
    assert browser.run("document.querySelectorAll('img, b b').length") == 0
    assert browser.run("typeof boom") == "undefined"
    browser.run("setState({libraries: true, tab: 'events'})")
    browser.wait("!!document.querySelector('[data-table=events]')")
    text = str(browser.run("document.body.textContent"))
    assert "onerror=boom()" in text and "\\u202e" in text and "\\u001b" in text
    assert "\u202e" not in text and "\x1b" not in text and "x" * 1000 not in text
    browser.run("setState({libraries: false, tab: ''})")


def _see_file(browser: Browser, recording: sonde.Recording, folder: Path, whole: object) -> None:
    """The same page with its data inside says the same, and reaches nothing."""
    path = folder / "report.html"
    words = [
        sys.executable,
        "-m",
        "sonde",
        "report",
        str(recording.sessions[0].pid),
        "-o",
        str(path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "in pieces of" in done.stdout
    browser.open(f"{path.as_uri()}#idle=1")
    browser.wait("document.body.dataset.ready === 'all'")
    # Each row is rounded to a microsecond.
    assert abs(read_whole(browser) - int(str(whole))) <= 1000 * int(browser.run("cube.n"))
    assert browser.run("find('sql').textContent").startswith("This file holds sums")
    assert browser.run("find('verdict').className")
    summed = "makeSpeedscope().profiles[0].weights.reduce((sum, one) => sum + one, 0)"
    assert browser.run(summed) == read_whole(browser)
    assert browser.run("fetch('https://example.org').then(() => 'out', () => 'in')") == "in"
    assert browser.run("document.querySelectorAll('img').length") == 0
    browser.said[:] = [one for one in browser.said if "example.org" not in one]


def _see_server_killed(browser: Browser, server: subprocess.Popen[str], link: str) -> None:
    browser.open(link)
    browser.wait("document.body.dataset.ready === 'all'")
    server.send_signal(signal.SIGKILL)
    server.wait()
    browser.run("load().catch(fail)")
    assert "does not answer" in str(
        browser.wait("!find('banner').hidden && find('banner').textContent")
    )
    browser.said[:] = [one for one in browser.said if "ERR_CONNECTION" not in one]


def test_two_processes_are_steered_compared_and_killed(
    browser: Browser, serve, tmp_path: Path
) -> None:
    program = tmp_path / "pair.py"
    program.write_text(PAIR)
    job = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)  # fmt: skip
    child = 0
    try:
        assert job.stdout.readline() == "ready\n"
        server, link = serve(str(job.pid))
        browser.open(link)
        browser.wait("document.body.dataset.ready === 'all' && about.processes.length === 1")
        job.stdin.write("go\n")
        job.stdin.flush()
        child = int(job.stdout.readline())
        # A process that the job starts while it is watched is shown as well.
        browser.wait("about.processes.length === 2 && heat.body.children.length === 2")
        _see_both_steered(browser, job.pid, child)
        os.kill(child, signal.SIGKILL)
        browser.wait("find('status').textContent.includes('1 of 2 processes')")
    finally:
        for pid in filter(None, (child, job.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=60)
    browser.wait("!about.live && find('status').textContent.includes('2 processes: killed')")
    sessions = [sonde.open(pid).sessions[0] for pid in (job.pid, child)]
    for session in sessions:
        wait_for(Path(session.folder, SEALED).exists)
    browser.open(link)
    browser.wait("document.body.dataset.ready === 'all'")
    _see_one_against_the_other(browser, job.pid, child)
    link = _see_server_started_anew(browser, serve, server, str(job.pid), link)
    _see_recording_removed(browser, sessions)


def _see_both_steered(browser: Browser, *pids: int) -> None:
    browser.wait("!find('look').hidden && !find('look').disabled")
    browser.run("find('look').click()")
    looked = str(browser.wait("find('looked') && find('looked').textContent"))
    assert all(str(pid) in looked for pid in pids)
    browser.run("find('config').click()")
    key = "document.querySelector('[data-key=\"stack.every\"]')"
    browser.wait(f"!!{key}")
    browser.run(f"{key}.value = '5ms'; {key}.nextElementSibling.click()")
    found = [sonde.open(pid).sessions[0] for pid in pids]
    wait_for(lambda: all(one.read_config()["stack.every"] == 0.005 for one in found))
    browser.run(CLOSE)
    browser.run("find('snap').click()")
    browser.wait("!!find('snapped')")
    browser.run(CLOSE)
    browser.wait("lists.profiles && lists.profiles.snapshots.length > 0")


def _see_one_against_the_other(browser: Browser, parent: int, child: int) -> None:
    """A recording of one process against that of both; and one process against the other."""
    for name in ("snapshots", "runs"):
        count = sonde.open([parent, child]).query(
            "SELECT COUNT(*) AS n FROM " + ("sonde.run" if name == "runs" else "sonde.snapshot "
            "WHERE kind = 'delta'"))["n"][0].as_py()  # fmt: skip
        assert browser.wait(f"lists.profiles && [lists.profiles.{name}.length]") == [count]
    browser.run("setState({tab: 'profiles', idle: true})")
    browser.wait("!!document.querySelector('[data-table=profiles] td button')")
    browser.run("document.querySelector('[data-table=profiles] td button').click()")
    assert browser.run("hasBrush()") is True
    browser.run("setState({tab: '', from: null, to: null})")
    recording = sonde.open(child)
    browser.run(f"setState({{against: '{recording.sessions[0].id}'}})")
    browser.wait("!!base.set && !!flame.before")
    assert browser.run("flame.before.whole") == read_sum(recording, "wall_ns")
    browser.run("setState({against: ''})")
    browser.wait("!base.set")
    part = "about.processes.find(one => one.pid === {}).part"
    browser.run(f"setState({{part: {part.format(parent)}}}); pin()")
    browser.run(f"setState({{part: {part.format(child)}}})")
    browser.wait("!!document.querySelector('[data-table=change]')")
    assert read_whole(browser) == read_sum(recording, "wall_ns")
    assert browser.run("flame.before.whole") == read_sum(sonde.open(parent), "wall_ns")
    browser.run("pin(); setState({part: null})")


def _see_server_started_anew(
    browser: Browser, serve, server: subprocess.Popen[str], target: str, link: str
) -> str:
    """The page says that its server has gone, and what to do once it is back with another link."""
    server.send_signal(signal.SIGKILL)
    server.wait()
    browser.run("load().catch(fail)")
    said = "!find('banner').hidden && find('banner').textContent"
    assert "does not answer" in str(browser.wait(said))
    port = link.split("/")[2].split(":")[1]
    _, link = serve(target, "--port", port)
    browser.wait("find('banner').textContent.includes('open the link that it printed')")
    browser.run(f"location.hash = '{link.split('#')[1]}'")
    browser.wait("find('banner').hidden && about.processes.length === 2")
    return link


def _see_recording_removed(browser: Browser, sessions: list[Session]) -> None:
    for session in sessions:
        shutil.rmtree(session.folder)
    browser.run("setBrush(0, 2); zoomIn()")
    browser.wait("find('banner').textContent.includes('has been removed since it was opened')")


def test_a_job_of_64_ranks_and_10000_stacks_shows_who_is_slow(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "large.html"
    path.write_text(make_large_page())
    browser.open(path.as_uri())
    browser.wait("document.body.dataset.ready === 'all'")
    browser.wait(f"document.querySelectorAll('#heat .row').length === {RANKS}")
    assert read_whole(browser) == RANKS * PIECES * S
    value = "document.querySelectorAll('#heat .row .value')[{}].textContent"
    assert browser.run(value.format(7)) == "+50 %"
    assert browser.run(value.format(8)) == "1.00 s"
    browser.run(f"setBrush({PIECES - 10}, {PIECES})")
    browser.wait(value.format(9) + " === 'no data'")
    assert read_whole(browser) == RANKS * 10 * S
    browser.run("document.querySelectorAll('#heat .row button')[7].click()")
    assert read_whole(browser) == 10 * S
    shown = browser.run(
        "[...document.querySelectorAll('.frame')].slice(1).map(f => f.dataset.name)"
    )
    assert set(shown) == {f"work_{100 * piece + 7}" for piece in range(PIECES - 10, PIECES)}
    assert browser.run("find('chips').textContent").count("rank 7") == 1
    _see_mean_step(browser)
    said = browser.run("document.querySelector('#verdict h2').textContent")
    assert said == "Nothing can be said: no rule has the data it needs"
    assert browser.said == []


def _see_mean_step(browser: Browser) -> None:
    """Each step counts once, however many pieces it covers; a rare long one does not flatten all."""
    mean = "+document.querySelector('.legend .unit').dataset.ns"
    browser.run("setState({part: null, from: null, to: null})")
    steps = [S] * (RANKS - 2) * PIECES + [S] * (PIECES // 2) + [3 * S / 2] * PIECES
    assert browser.run(mean) == round(sum(steps) / len(steps))
    assert browser.run("(one => one.top === one.most)(findScale(findBands()))") is True
    browser.run("ribbon.steps.forward[ribbon.steps.piece.indexOf(50)] = 5e12; drawRibbon()")
    top, most = browser.run("(one => [one.top, one.most])(findScale(findBands()))")
    assert top < 4100 < 70_000 < most
    assert browser.run("find('status').textContent.startsWith('64 processes: ended')") is True


def test_gpus_and_modules_show_what_sql_says(browser: Browser, tmp_path: Path) -> None:
    folder = sonde.start(**OFF)
    assert folder is not None
    machine = Machine(1.0)
    job = Job(machine.start_ns + S)
    for number in range(8):
        job.step(number, make_gpt(blocks=2))
    machine.run(30, gpu=lambda s: [{"util_pct": 2 * s, "power_w": 400.0 + 9 * s},
                                   {"util_pct": 7.0, "sm_clock_mhz": 1200 + 10 * int(s)}])  # fmt: skip
    session = Session(folder)
    begin, end = (ns + session.wall_offset_ns for ns in (machine.start_ns, machine.now_ns))
    opened = Opened("gpt", [session], Window(begin, end))
    path = tmp_path / "gpt.html"
    path.write_text(make_report(opened)[0])
    opened.close()
    browser.open(f"{path.as_uri()}#tab=modules")
    browser.wait("document.body.dataset.ready === 'all' && !!lists.modules")
    asked = opened.recording.query(
        "SELECT gpu, AVG(util_pct) AS util, AVG(memory_used_bytes) / 1024 ** 3 AS memory, "
        "AVG(power_w) AS power, AVG(sm_clock_mhz) AS clock FROM system.gpu GROUP BY gpu ORDER BY gpu"
    ).to_pylist()
    shown = "[...document.querySelectorAll('[data-chart=\"{}\"] .keys b')].map(b => b.textContent)"
    utils = browser.run(shown.format("GPU utilisation"))
    assert utils == [f"{asked[0]['util']:.0f} %", f"{asked[1]['util']:.1f} %"]
    assert browser.run(shown.format("GPU memory")) == [f"{one['memory']:.1f} GiB" for one in asked]
    powers = browser.run(shown.format("GPU power"))
    assert powers == [f"{one['power']:.4g} W" for one in asked] and powers[0] != powers[1]
    clocks = browser.run(shown.format("GPU clock"))
    assert clocks == [f"{one['clock']:,.0f} MHz" for one in asked] and clocks[0] != clocks[1]
    rows = browser.wait(
        "[...document.querySelectorAll('[data-table=modules] tbody tr')]"
        ".map(row => [row.cells[0].title.split(' ')[0], +row.dataset.ns])"
    )
    # The first step is warm-up; equal blocks are one row.
    sums = opened.recording.query(
        "SELECT regexp_replace(module, 'blocks.[0-9]', 'blocks.0') AS module, "
        "ROUND(SUM(duration) * 1e9 / 7)::BIGINT AS ns FROM python.torch_trace WHERE step > 0 "
        "GROUP BY 1"
    ).to_pylist()
    assert {name: round(ns) for name, ns in rows} == {one["module"]: one["ns"] for one in sums}
    boxes = browser.run(
        "[...document.querySelectorAll('.module')].map(b => [b.dataset.module, b.offsetWidth])"
    )
    whole = browser.run("document.querySelector('.icicle').offsetWidth / lists.modules.step_ns")
    widths = dict(boxes)
    assert len(widths) == 6 and all(abs(widths[name] - ns * whole) <= 1 for name, ns in rows)
    browser.run("document.querySelectorAll('.module')[2].click()")
    assert browser.run("document.querySelector('tr.chosen').rowIndex") == 3
    assert len(sums) == 6 and browser.said == []
