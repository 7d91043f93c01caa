"""The flame graph page, driven in a real browser."""

from __future__ import annotations

import random
import re
from pathlib import Path

from sonde.analysis.profile import (
    Profile,
    ProfileFrame,
    RecordedProcess,
    RecordedThread,
    Selection,
    Stack,
)
from sonde.analysis.window import find_window
from sonde.words import show_duration
from support.browser import drive
from support.handmade_stacks import (
    FakeRecording,
    export,
    record_training,
    write,
)

_PAGE = """
const find = (id) => document.getElementById(id);
await until(() => document.body.dataset.ready);
const press = async (name) => {
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true })); await wait();
};
const details = () => find("details").textContent;
const type = (text) => { find("search").value = text; find("search").dispatchEvent(new Event("input")); };
"""


def test_the_page_shows_totals_and_finds_names(tmp_path: Path) -> None:
    path = write("flamegraph", record_training().profile(), tmp_path)
    said = drive(path, _PAGE + """
        const all = details();
        type("matmul");
        const matmul = find("matched").textContent;
        type("fib");
        const fib = find("matched").textContent;
        type("/^(train|wait) /");
        const regex = find("matched").textContent;
        type("(");
        const bracket = find("matched").textContent;
        type("");
        return { all, matmul, fib, regex, bracket, none: find("matched").textContent };
    """)  # fmt: skip
    assert said == {
        "errors": [], "all": "alltotal 240.0 ms (100.00 %) · self 0 µs (0.00 %)",
        "matmul": "matched 25.00 %", "fib": "matched 8.33 %", "regex": "matched 83.33 %",
        "bracket": "matched 8.33 %", "none": "",
    }  # fmt: skip


def test_the_page_zooms_by_click_and_by_key_and_comes_back(tmp_path: Path) -> None:
    path = write("flamegraph", record_training().profile(), tmp_path)
    said = drive(path, _PAGE + """
        const canvas = find("canvas"), box = canvas.getBoundingClientRect();
        const click = async (x, row) => {
            const at = { clientX: box.left + x, clientY: box.top + 4 + row * 20 + 5, bubbles: true };
            canvas.dispatchEvent(new MouseEvent("click", at)); await wait(); await wait();
        };
        await click(20, 2);
        const clicked = details(), canReset = !find("reset").disabled;
        find("reset").click(); await wait();
        const back = details(), cannotReset = find("reset").disabled;
        for (const name of ["ArrowDown", "ArrowDown", "ArrowRight"]) await press(name);
        const moved = details();
        await press("Enter");
        const zoomed = details();
        await press("Escape"); await press("0");
        return { clicked, canReset, back, cannotReset, moved, zoomed };
    """)  # fmt: skip
    assert said["errors"] == []
    assert said["clicked"].startswith(
        "train/job/train.py:20total 80.0 ms (33.33 %, 100.00 % of the view)"
    )
    assert said["canReset"] and said["cannotReset"] and said["back"].startswith("alltotal 240.0 ms")
    assert said["moved"].startswith("fib/job/train.py:20total 20.0 ms (8.33 %)")
    assert "100.00 % of the view" in said["zoomed"]


def test_the_page_switches_weight_thread_and_direction(tmp_path: Path) -> None:
    path = write("flamegraph", record_training().profile(), tmp_path)
    said = drive(path, _PAGE + """
        await press("c"); const cpu = details();
        await press("g"); const gil = details();
        await press("w");
        const names = [...find("thread").options].map((option) => option.textContent);
        find("thread").value = "t1"; find("thread").dispatchEvent(new Event("change"));
        await press("ArrowDown"); const thread = details();
        find("thread").value = "all"; find("thread").dispatchEvent(new Event("change"));
        await press("i"); await press("ArrowDown"); await press("ArrowRight");
        const inverted = details();
        await press("ArrowDown"); const caller = details();
        return { cpu, gil, names, thread, inverted, caller };
    """)  # fmt: skip
    assert said["errors"] == []
    assert said["cpu"].startswith("alltotal 84.0 ms") and said["gil"].startswith("alltotal 60.0 ms")
    assert said["names"] == [
        "all 4",
        "all of train.py (rank 0, alpha pid 100)", "MainThread (100)", "loader;0 (101)",
        "all of train.py (rank 1, beta pid 100)", "MainThread (100)", "loader;0 (101)",
    ]  # fmt: skip
    assert said["thread"].startswith("run/job/train.py:10total 60.0 ms (100.00 %)")
    # Innermost first: what matmul took, whoever called it; below it, its callers.
    assert said["inverted"].startswith("matmul/job/train.py:40total 60.0 ms (25.00 %)")
    assert said["caller"].startswith("forward/job/train.py:30total 40.0 ms (16.67 %)")


def test_idle_time_is_left_out_until_its_switch_is_pressed(tmp_path: Path) -> None:
    wait = ("Condition.wait", "/opt/lib/python3.12/threading.py", 355, 350)
    main = ("main", "/job/app.py", 3, 1)
    recording = FakeRecording().see([main], 10)
    recording.see([wait], 100, wall=90, cpu=0, gil=False, thread=101)
    profile = Profile(recording, Selection(find_window(recording, None, None), idle=False))
    said = drive(write("flamegraph", profile, tmp_path), _PAGE + """
        const threads = () => [...find("thread").options].filter((one) => !one.hidden).length;
        const off = [find("idle").textContent, details(), threads()];
        find("idle").click(); await wait();
        const on = [find("idle").getAttribute("aria-pressed"), details(), threads()];
        await press("d"); const again = details();
        await press("c"); const disabled = find("idle").disabled;
        return { off, on, again, disabled };
    """)  # fmt: skip
    ten = "alltotal 10.0 ms (100.00 %) · self 0 µs (0.00 %)"
    assert said == {
        "errors": [], "off": ["Idle 90.0 ms", ten, 2], "again": ten, "disabled": True,
        "on": ["true", ten.replace("10.0 ms", "100.0 ms"), 3],
    }  # fmt: skip


def test_the_page_asks_the_network_for_nothing() -> None:
    page = export("flamegraph", record_training().profile()).decode()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|src=|@import|url\(", page)


def make_stacks(count: int) -> list[Stack]:
    """Distinct stacks as a large program has them: a few dozen deep, most of them much alike."""
    chance = random.Random(1)
    frames = [
        ProfileFrame(f"function_{at}", f"/lib/module_{at // 20}.py", at, at) for at in range(2000)
    ]
    thread = RecordedThread(RecordedProcess("s", "alpha", 1, None, "train.py"), 1, "MainThread")
    found: dict[tuple[ProfileFrame, ...], Stack] = {}
    path = frames[:20]
    while len(found) < count:
        keep = max(15, len(path) - chance.randint(0, 6))
        near = [(path[keep - 1].lineno * 7 + chance.randint(1, 5)) % 2000]
        for _ in range(chance.randint(0, 5)):
            near.append((near[-1] * 7 + chance.randint(1, 5)) % 2000)
        path = [*path[:keep], *(frames[at] for at in near)][:45]
        wall = chance.randint(1, 400) * 10_012_345
        ns = (wall, wall // 3, chance.choice((0, wall)))
        found[tuple(path)] = Stack(thread, tuple(path), (1, 1, 1), ns)
    return list(found.values())


def test_fifty_thousand_stacks_fit_a_page_of_a_few_hundred_kilobytes(tmp_path: Path) -> None:
    profile = FakeRecording().see("a", 10).profile()
    profile.__dict__["stacks"] = make_stacks(50_000)
    path = write("flamegraph", profile, tmp_path)
    assert path.stat().st_size < 900_000
    total_us = sum(round(stack.ns[0] / 1000) for stack in profile.stacks)
    said = drive(path, _PAGE + "return { all: details() };")
    assert said["errors"] == []
    assert said["all"].startswith(f"alltotal {show_duration(1000 * total_us)} (100.00 %)")
