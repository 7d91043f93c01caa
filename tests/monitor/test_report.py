"""What the monitor measures: readings as they come and in SQL, statistics, CSV, the page, pictures."""

from __future__ import annotations

import csv
import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sonde
from sonde.errors import ConfigError
from sonde.monitor import chart_lines, page, pictures, report, statistics
from sonde.monitor.chart_lines import ChartLine, ChartLines
from sonde.monitor.condition import METRICS, Condition
from sonde.monitor.log import COLUMNS, NAME, NETWORK_COLUMNS, Log
from sonde.monitor.reading_sql import (
    GPU_LINES,
    LINES,
    MeasuredTime,
    ask_lines,
    write_gpus,
    write_readings,
)
from sonde.monitor.readings import ReadingsReader
from sonde.monitor.scope import GpuReading, Reading, Scope
from sonde.monitor.watch import Measurement
from sonde.session import Session
from sonde.store.recording import Recording
from support.browser import find_browser
from support.devtools import Browser
from support.handmade_machine import OFF, Machine
from support.page_file import read_answers

S = 10**9
GIB = 2**30
LATER = 10**18  # every reading is complete by then
WIRES = [
    {"interface": "lo", "kind": "loopback", "received_bytes": 7777, "sent_bytes": 7777},
    {"interface": "eth0", "kind": "ethernet", "received_bytes": 300, "sent_bytes": 40},
    {"interface": "ib0", "kind": "rdma", "received_bytes": 1000, "sent_bytes": 2},
]
TREE = Scope(pid=1)


class Watched:
    """A session with a machine made by hand."""

    def __init__(self, every_s: float = 1.0) -> None:
        folder = sonde.start(**OFF)
        assert folder is not None
        self.session, self.machine = Session(folder), Machine(every_s)

    def window(self, scope: Scope = TREE) -> MeasuredTime:
        return MeasuredTime(
            self.machine.start_ns, self.machine.now_ns, self.machine.every_ns, scope
        )

    def read(self, scope: Scope = TREE) -> list[Reading]:
        return list(ReadingsReader(self.session, scope, self.machine.every_ns).read(LATER))

    def ask(self, scope: Scope = TREE) -> list[dict[str, object]]:
        sql = f"WITH {write_readings(self.window(scope))} SELECT * FROM reading ORDER BY t_ns"
        return Recording([self.session]).query(sql).to_pylist()

    def compute(self, scope: Scope = TREE, gpus: list[int] | None = None) -> dict[str, object]:
        return statistics.compute(Recording([self.session]), self.window(scope), gpus)

    def describe(
        self, folder: Path, scope: Scope = TREE, gpus: list[int] | None = None
    ) -> Measurement:
        return Measurement(str(folder), self.session.folder, self.window(scope), 10.0, gpus,
                        "its time was over (1 min)", "", ["python", "train.py"])  # fmt: skip


@pytest.fixture
def watched() -> Watched:
    return Watched()


# ---- readings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", (TREE, Scope(1, 1), Scope()), ids=("tree", "below", "all"))
def test_readings_as_they_come_are_what_sql_says(watched: Watched, scope: Scope) -> None:
    watched.machine.run(
        20,
        process=lambda s: [
            {"user_pct": 50.0 + s, "system_pct": 25.0, "read_bytes": 100, "rss_bytes": 1000},
            {"depth": 1, "user_pct": 9.0, "rss_bytes": 500, "interval_ns": S // 4},
        ],
        network=WIRES,
        cgroup=lambda s: {} if s > 10 else {"user_pct": None, "memory_bytes": None, "interval_ns": None},
        disk=lambda s: None if 5 < s < 8 else {"read_bytes": round(1000 * s)},
        memory=lambda s: None if 12 < s < 14 else {},
    )  # fmt: skip
    live, asked = watched.read(scope), watched.ask(scope)
    assert len(live) == len(asked) == 20
    for reading, row in zip(live, asked, strict=True):
        assert (reading.t_ns, reading.interval_ns) == (row["t_ns"], row["interval_ns"])
        assert reading.cpu_pct == pytest.approx(row["cpu_pct"])
        assert (reading.used_bytes, reading.total_bytes) == (row["used_bytes"], row["total_bytes"])
        amounts = [
            row[name] for name in ("read_bytes", "written_bytes", "received_bytes", "sent_bytes")
        ]
        per_s = S / row["interval_ns"]
        assert reading.rates == tuple(
            None if a is None else pytest.approx(a * per_s) for a in amounts
        )


def test_time_in_the_kernel_counts_and_the_monitor_itself_does_not(watched: Watched) -> None:
    own = {"user_pct": 40.0, "system_pct": 5.0}
    job = {"depth": 1, "user_pct": 60.0, "system_pct": 30.0}
    watched.machine.run(3, process=[own, job])
    assert [row["cpu_pct"] for row in watched.ask(Scope(1, 1))] == [90.0] * 3
    assert [row["cpu_pct"] for row in watched.ask(Scope(1, 0))] == [135.0] * 3


def test_a_process_that_began_during_a_reading_counts_with_its_time_only(watched: Watched) -> None:
    young = {"user_pct": 100.0, "system_pct": 0.0, "interval_ns": S // 10}
    watched.machine.run(1, process=[young])
    assert watched.ask()[0]["cpu_pct"] == pytest.approx(10.0)


def test_never_more_than_the_processors_can_do(watched: Watched) -> None:
    watched.machine.run(2, cpu={"cores": 2}, cgroup={"user_pct": 150.0, "system_pct": 50.5})
    assert [row["cpu_pct"] for row in watched.ask(Scope())] == [200.0, 200.0]
    assert [reading.cpu_pct for reading in watched.read(Scope())] == [200.0, 200.0]


def test_loopback_is_no_network(watched: Watched) -> None:
    watched.machine.run(2, network=WIRES)
    assert [row["received_bytes"] for row in watched.ask()] == [1300, 1300]
    assert [reading.sent_bytes_s for reading in watched.read()] == [42, 42]


def test_memory_ends_at_the_limit_of_the_container(watched: Watched) -> None:
    watched.machine.run(1, cgroup={"memory_limit_bytes": 64}, memory={"total_bytes": 256})
    watched.machine.run(1, cgroup={"memory_limit_bytes": None}, memory={"total_bytes": 256})
    assert [reading.total_bytes for reading in watched.read()] == [64, 256]
    assert [row["total_bytes"] for row in watched.ask()] == [64, 256]


def test_without_a_cgroup_the_machine_is_what_is_watched(watched: Watched) -> None:
    watched.machine.run(1, cgroup=None, cpu={"busy_pct": 50.0, "cores": 4}, disk={"read_bytes": 9})
    (row,) = watched.ask(Scope())
    assert (row["cpu_pct"], row["read_bytes"]) == (200.0, 9.0)


def test_rows_go_to_the_reading_they_were_made_with(watched: Watched) -> None:
    """The sensors of one reading come one after the other, a little later each time."""
    for step in range(1, 6):
        late_ns = watched.machine.now_ns + S + step * 50_000_000
        watched.machine.write_reading(process=[{"t_ns": late_ns, "user_pct": float(step)}])
    assert [row["cpu_pct"] for row in watched.ask()] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [reading.cpu_pct for reading in watched.read()] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_reading_waits_until_its_rows_are_there(watched: Watched) -> None:
    watched.machine.run(2)
    readings = ReadingsReader(watched.session, TREE, S)
    assert len(list(readings.read(watched.machine.now_ns))) == 1
    assert len(list(readings.read(watched.machine.now_ns + S // 2 + 1))) == 1
    assert list(readings.read(LATER)) == []


def test_gpus_that_the_job_has_memory_on_are_known(watched: Watched) -> None:
    owners = [{"gpu": 1, "process": 5, "memory_bytes": 9}, {"gpu": 3, "process": None}]
    watched.machine.run(1, gpu_process=owners)
    readings = ReadingsReader(watched.session, TREE, S)
    list(readings.read(LATER))
    assert readings.mine == {1}


# ---- statistics ----------------------------------------------------------------------------------


def test_statistics_are_those_of_the_numbers(watched: Watched) -> None:
    watched.machine.run(
        10, process=lambda s: [{"user_pct": round(s) * 10.0, "system_pct": 0.0}],
        gpu=lambda s: [{"util_pct": 100.0 if s > 5.1 else 0.0}, {"util_pct": 70.0}],
    )  # fmt: skip
    found = watched.compute()
    cpu = found["cpu_pct"]
    assert (cpu["max"], cpu["min"], cpu["mean"], cpu["median"]) == (100.0, 10.0, 55.0, 55.0)
    assert cpu["std"] == pytest.approx(math.sqrt(825)) and cpu["p80"] == pytest.approx(82.0)
    first, second = found["gpus"]
    assert (first["gpu"], first["util_pct"]["mean"], first["util_pct"]["max"]) == (0, 50.0, 100.0)
    assert second["util_pct"]["std"] == 0.0 and second["memory_pct"]["max"] == 75.0
    assert found["readings"] == 10 and found["measured_ns"] == 10 * 10**9


def test_volumes_are_sums_of_what_was_moved_whatever_the_intervals(watched: Watched) -> None:
    sizes = [5 * 2**20, 0, 123, GIB]
    for at, size in enumerate(sizes):
        watched.machine.write_reading(
            process=[{"read_bytes": size}], cpu={"interval_ns": S * (at + 1)}, network=WIRES
        )
    found = watched.compute()["read_bytes"]
    assert found["volume_bytes"] == sum(sizes)
    assert found["min_without_zero_bytes_s"] == 123 / 3 and found["max_bytes_s"] == 5 * GIB / 20
    assert (
        sum(reading.read_bytes_s * reading.interval_ns for reading in watched.read())
        == sum(sizes) * S
    )


def test_only_what_lies_in_the_window_counts(watched: Watched) -> None:
    watched.machine.run(5, process=[{"user_pct": 1.0, "read_bytes": 1}])
    begin_ns = watched.machine.now_ns
    watched.machine.run(5, process=[{"user_pct": 90.0, "read_bytes": 10}])
    window = MeasuredTime(begin_ns, watched.machine.now_ns, S, TREE)
    found = statistics.compute(Recording([watched.session]), window, None)
    assert (found["readings"], found["cpu_pct"]["min"]) == (5, 90.0)
    assert found["read_bytes"]["volume_bytes"] == 50


def test_a_value_that_is_never_there_is_unknown(watched: Watched) -> None:
    watched.machine.run(3, gpu=None, network=None, disk=None, cgroup=None)
    found = watched.compute(Scope())
    assert found["gpus"] == [] and found["received_bytes"]["volume_bytes"] is None
    assert found["read_bytes"]["volume_bytes"] is None and found["cpu_pct"]["mean"] is not None


def test_chosen_gpus_alone_are_in_the_statistics(watched: Watched) -> None:
    watched.machine.run(3, gpu=[{}, {}, {}])
    assert [gpu["gpu"] for gpu in watched.compute(gpus=[0, 2])["gpus"]] == [0, 2]
    assert watched.compute(gpus=[])["gpus"] == []


# ---- the condition -------------------------------------------------------------------------------


def make_reading(**values: object) -> Reading:
    plain = dict(t_ns=S, interval_ns=S, cpu_pct=150.0, used_bytes=30.0, total_bytes=100.0,
                 read_bytes_s=2.0 * 2**20, written_bytes_s=None, received_bytes_s=0.0,
                 sent_bytes_s=0.0, gpus={0: GpuReading(10.0, 5.0, 20.0, 100.0),
                                         1: GpuReading(60.0, 5.0, 50.0, 100.0)})  # fmt: skip
    return Reading(**{**plain, **values})


@pytest.mark.parametrize(
    ("text", "holds"),
    (("gpu>20", True), ("gpu > 60 %", False), ("gpu_memory<51", True), ("cpu>149.5", True),
     ("memory>30", False), ("memory<31 and disk>1.9", True), ("disk<1", False),
     ("network<1 and cpu<100", False), (None, True)),
)  # fmt: skip
def test_a_condition_holds_or_does_not(text: str | None, holds: bool) -> None:
    assert Condition(text).holds(make_reading()) is holds


def test_what_cannot_be_measured_is_neither_above_nor_below() -> None:
    blind = make_reading(gpus={}, cpu_pct=None)
    assert not any(
        Condition(f"{name}{sign}5").holds(blind) for name in ("gpu", "cpu") for sign in "<>"
    )


@pytest.mark.parametrize("text", ("gpu", "gpus>5", "gpu>x", "gpu=5", "gpu>5 and", "gpu>5 or cpu>1"))
def test_a_wrong_condition_is_told_with_what_is_known(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Condition(text)
    assert all(name in str(error.value) for name in METRICS)


# ---- the CSV -------------------------------------------------------------------------------------


def read_csv(folder: Path) -> list[dict[str, str]]:
    with open(folder / NAME, newline="") as file:
        return list(csv.DictReader(file))


def test_the_csv_has_the_columns_of_the_original(tmp_path: Path) -> None:
    log = Log(str(tmp_path), None)
    log.write(make_reading(t_ns=3 * S, used_bytes=GIB, total_bytes=4 * GIB), 2 * S)
    (row,) = read_csv(tmp_path)  # flushed: nobody closed it
    log.close()
    assert row == {
        "timestamp": "1", "cpu_usage(%)": "150", "mem_used(GiByte)": "1", "mem_total(GiByte)": "4",
        "IO_read(KiByte/s)": "2048", "IO_write(KiByte/s)": "", "network_receive(KiByte/s)": "0",
        "network_transmit(KiByte/s)": "0",
        "gpu_usage_0": "10", "gpu_mem_usage_0": "5", "gpu_mem_used_0": f"{20 / GIB:.10g}",
        "gpu_mem_total_0": f"{100 / GIB:.10g}", "gpu_usage_1": "60", "gpu_mem_usage_1": "5",
        "gpu_mem_used_1": f"{50 / GIB:.10g}", "gpu_mem_total_1": f"{100 / GIB:.10g}",
    }  # fmt: skip


def test_a_gpu_that_comes_later_gets_its_columns_and_empty_cells_before(tmp_path: Path) -> None:
    log = Log(str(tmp_path), None)
    card = GpuReading(33.0, 1.0, 1.0, 2.0)
    for gpus in ({}, {1: card}, {0: card, 1: card}, {}):
        log.write(make_reading(gpus=gpus), 0)
    log.close()
    rows = read_csv(tmp_path)
    assert [row["gpu_usage_0"] for row in rows] == ["", "", "33", ""]
    assert [row["gpu_usage_1"] for row in rows] == ["", "33", "33", ""]
    assert len(rows[0]) == len(COLUMNS) + len(NETWORK_COLUMNS) + 8


def test_traffic_of_the_whole_machine_is_called_so_in_the_csv(tmp_path: Path) -> None:
    log = Log(str(tmp_path), None, has_whole_network=True)
    log.write(make_reading(), 0)  # with GPUs, which have the file written anew
    log.close()
    (row,) = read_csv(tmp_path)
    assert (
        row["machine_network_receive(KiByte/s)"] == row["machine_network_transmit(KiByte/s)"] == "0"
    )
    assert not any(name.startswith("network") for name in row)


def test_pandas_reads_the_csv_as_numbers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    log = Log(str(tmp_path), [0, 5])
    log.write(make_reading(), 0)
    log.write(make_reading(gpus={}, cpu_pct=None), 0)
    log.close()
    frame = pandas.read_csv(tmp_path / NAME)
    assert all(kind == "float64" or kind == "int64" for kind in frame.dtypes.astype(str))
    assert frame["cpu_usage(%)"].mean() == 150 and frame["gpu_usage_5"].isna().all()


# ---- lines, pictures, page -----------------------------------------------------------------------


def make_lines(count: int, cards: int = 2, gap_at: int | None = None) -> ChartLines:
    seconds = [
        float(at + (100 if gap_at is not None and at >= gap_at else 0)) for at in range(count)
    ]

    def line(name: str, unit: str, phase: float) -> ChartLine:
        mean: list[float | None] = [50 + 49 * math.sin(at / 7 + phase) for at in range(count)]
        return ChartLine(
            name, unit, mean, [v and v * 0.9 for v in mean], [v and v * 1.01 for v in mean]
        )

    readings = {name: line(name, unit, at) for at, (name, unit, _) in enumerate(LINES)}
    gpus = {gpu: {name: line(name, unit, gpu + at) for at, (name, unit, _) in enumerate(GPU_LINES)}
            for gpu in range(cards)}  # fmt: skip
    return ChartLines(seconds, 2.5, readings, gpus)


def test_many_readings_become_few_steps_and_no_peak_is_lost(watched: Watched) -> None:
    watched.machine.run(500, process=lambda s: [{"user_pct": 900.0 if 199.5 < s < 200.5 else 5.0}])
    rows = Recording([watched.session]).query(ask_lines(watched.window(), 50)).to_pydict()
    assert len(rows["step"]) <= 50 and max(rows["cpu_high"]) == 900.0
    assert max(rows["cpu"]) < 200 and min(rows["cpu_low"]) == 5.0


def test_lines_of_gpus_are_on_the_axis_of_the_readings(watched: Watched) -> None:
    watched.machine.run(6, gpu=lambda s: None if 2.1 < s < 4.1 else [{"util_pct": s}, {}])
    drawn = chart_lines.read(Recording([watched.session]), watched.window(), None)
    assert [value is None for value in drawn.gpus[0]["util"].mean] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert drawn.seconds == [1, 2, 3, 4, 5, 6]


def test_a_hole_in_time_is_a_hole_in_a_line() -> None:
    drawn = make_lines(10, gap_at=5)
    broken = pictures._break(drawn, drawn.readings["cpu"].mean)
    assert [math.isnan(value) for value in broken] == [False] * 5 + [True] + [False] * 5


@pytest.mark.parametrize("cards", (0, 1, 8))
def test_there_are_five_pictures(tmp_path: Path, cards: int) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("matplotlib.image")
    found, hint = pictures.write(str(tmp_path), make_lines(50, cards, gap_at=20))
    assert hint is None and found == [
        f"img/{name}.png" for name in ("GPU_MEM_Utilization", "GPU_UTI_Utilization",
                                       "CPU_GPU_Utilization", "Disk_Utilization", "Network_Utilization")
    ]  # fmt: skip
    for path in found:
        pixels = image.imread(tmp_path / path)
        assert pixels.shape[0] > 300 and pixels.shape[1] > 900 and pixels[..., :3].std() > 0.01


def test_nothing_measured_is_drawn_all_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found, hint = pictures.write(str(tmp_path), ChartLines())
    assert len(found) == 5 and hint is None


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: to draw takes longer than all else in a report."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_without_matplotlib_the_report_says_how_to_get_pictures(
    watched: Watched, tmp_path: Path, no_pictures: None, capsys
) -> None:
    watched.machine.run(3)
    report.write(watched.describe(tmp_path), sys.stdout)
    said = json.loads((tmp_path / "report.json").read_text())
    assert said["pictures"] == [] and pictures.HINT in said["missing"]
    assert pictures.HINT in capsys.readouterr().out and (tmp_path / "report.html").exists()


class Words(HTMLParser):
    """What a page loads from elsewhere, and what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [value or "" for name, value in attrs if name in ("src", "href")]


def make_report(watched: Watched, folder: Path) -> str:
    report.write(watched.describe(folder), sys.stdout)
    return (folder / "report.html").read_text()


def test_the_page_has_all_data_and_needs_nothing_from_elsewhere(
    watched: Watched, tmp_path: Path, no_pictures: None, capsys
) -> None:
    watched.machine.run(
        30, gpu=[{"util_pct": 10.0, "memory_used_bytes": 10**9}, {"util_pct": 20.0}], network=WIRES,
        process=[{"read_bytes": 5}],
    )  # fmt: skip
    text = make_report(watched, tmp_path)
    words = Words()
    words.feed(text)
    assert words.outside == ["data:,"] and words.tags.count("script") == 2
    data = read_answers(text)
    charts = {chart["title"]: chart for chart in data["machine"]["charts"]}
    assert [line["name"] for line in charts["GPU utilization"]["lines"]] == ["GPU 0", "GPU 1"]
    assert charts["GPU utilization"]["lines"][1]["values"] == [20.0] * 30
    assert {"CPU", "Memory", "Disk", "GPU memory", "GPU power"} <= set(charts)
    findings = data["advice"]["advice"]["findings"]
    assert findings and all(one["why"] and one["todo"] and one["shown"] for one in findings)
    patterns = data["measured"]["patterns"]
    assert len(patterns) == 4 and all(line.startswith("There is ") for line in patterns)


def test_an_hour_at_ten_readings_a_second_with_eight_gpus_stays_below_three_megabytes(
    watched: Watched, tmp_path: Path
) -> None:
    watched.machine.run(3)
    drawn = make_lines(chart_lines.MOST, 8)
    said = {"title": "</script><img src=x onerror=alert(1)>", "about": [], "patterns": [],
            "missing": [], "advice": {"findings": [], "outcomes": [], "summary": "fine"},
            "statistics": watched.compute()}  # fmt: skip
    text = page.make(watched.describe(tmp_path), said, drawn, [])
    assert len(text) < 3 * 10**6 and "<img" not in text


def test_the_page_shows_in_a_browser_what_was_measured(
    watched: Watched, tmp_path: Path, no_pictures: None
) -> None:
    find_browser()
    watched.machine.run(
        40, gpu=lambda s: [{"util_pct": 42.0 if s < 20.5 else 84.0}, {"util_pct": 7.0}]
    )
    make_report(watched, tmp_path)
    said = json.loads((tmp_path / "report.json").read_text())
    with Browser(tmp_path / "profile") as browser:
        browser.size(1440, 900)
        browser.open((tmp_path / "report.html").as_uri())
        browser.wait("document.body.dataset.ready === 'all' && find('verdict').className")
        keys = (
            "[...document.querySelectorAll('[data-chart=\"GPU utilization\"] .keys b')]"
            ".map(one => one.textContent).join()"
        )
        mean = said["statistics"]["gpus"][0]["util_pct"]["mean"]
        assert browser.wait(keys) == f"{mean:.0f} %,7.0 %"
        browser.run("setBrush(0, time.pieces / 2)")
        browser.wait(f"{keys} === '42 %,7.0 %'")
        browser.run("zoomIn()")  # which a file can do, too
        assert browser.wait("time.pieces * time.width < 21e9 && machine.charts.length")
        assert browser.run(keys) == "42 %,7.0 %"
        rows = str(browser.run("makeMachineCsv()")).splitlines()
        assert rows[0] == "seconds,chart,line,unit,value"
        assert "10,GPU utilization,GPU 0,%,42" in rows
        text = str(browser.run("lists.body.textContent + find('verdict').textContent"))
        assert all(one in text for one in [*said["missing"], *said["patterns"], *said["about"]])
        assert said["advice"]["findings"][0]["title"] in text
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.said == []


@pytest.mark.parametrize(
    ("scope", "title"),
    [
        (Scope(1, 1), "Network inbound, the whole container or machine"),
        (Scope(1, has_own_network=True), "Network inbound"),
        (Scope(), "Network inbound"),
    ],
)
def test_a_command_is_not_charged_with_the_network_of_others(
    watched: Watched, tmp_path: Path, no_pictures: None, capsys, scope: Scope, title: str
) -> None:
    watched.machine.run(5, network=WIRES)
    report.write(watched.describe(tmp_path, scope), sys.stdout)
    assert title in capsys.readouterr().out.splitlines()
    assert f"| {title} |" in (tmp_path / "report.md").read_text()
    answers = read_answers((tmp_path / "report.html").read_text())
    charts = [chart["title"] for chart in answers["machine"]["charts"]]
    assert title.replace(" inbound", "") in charts
    said = json.loads((tmp_path / "report.json").read_text())
    assert said["statistics"]["network_of"] == title.partition(", ")[2]


# ---- the report ----------------------------------------------------------------------------------


def test_findings_patterns_and_statistics_are_in_every_form(
    watched: Watched, tmp_path: Path, capsys
) -> None:
    watched.machine.run(
        30, gpu=[{"util_pct": 30.0, "memory_used_bytes": 70 * 10**9},
                 {"util_pct": 5.0, "memory_used_bytes": 10**9}], network=WIRES,
    )  # fmt: skip
    report.write(watched.describe(tmp_path), sys.stdout)
    said = json.loads((tmp_path / "report.json").read_text())
    markdown, printed = (tmp_path / "report.md").read_text(), capsys.readouterr().out
    titles = [finding["title"] for finding in said["advice"]["findings"]]
    assert titles
    for finding in said["advice"]["findings"]:
        assert finding["why"] and finding["todo"] and finding["judged"] >= finding["fired"] > 0
        votes = f"{finding['fired']} of {finding['judged']} pieces"
        assert finding["title"] in printed and votes in printed and finding["todo"] in printed
        assert votes in markdown
    # The patterns are in the words of the original.
    uneven = "There is MOST sample showing that 'There is mal-distribution of the GPU memory between the multiple GPUs.'"
    assert uneven in said["patterns"] and uneven in printed and uneven in markdown.replace("\\", "")
    # Every GPU has its statistics.
    assert "Number of GPUs: 2" in printed and "GPU 0: H200" in printed and "GPU 1: H200" in printed
    assert printed.count("80th percentile") == 4
    assert "| GPU 1 utilization | 5.0 %" in markdown
    assert said["statistics"]["received_bytes"]["volume_bytes"] == 30 * 1300


def test_a_report_of_nothing_says_so(
    watched: Watched, tmp_path: Path, no_pictures: None, capsys
) -> None:
    report.write(watched.describe(tmp_path), sys.stdout)
    said = json.loads((tmp_path / "report.json").read_text())
    assert said["statistics"]["readings"] == 0 and said["statistics"]["gpus"] == []
    assert "nothing was measured" in said["missing"][0] and said["advice"]["findings"] == []
    assert (tmp_path / "report.md").exists()
    assert read_answers((tmp_path / "report.html").read_text())["machine"] == {"charts": []}


def test_what_a_user_is_shown_can_be_had_with_one_sql_statement(watched: Watched) -> None:
    watched.machine.run(5, gpu=[{"util_pct": 11.0}])
    sql = f"WITH {write_readings(watched.window())}, {write_gpus(watched.window(), None)} SELECT AVG(util_pct) AS mean FROM card"
    assert Recording([watched.session]).query(sql).to_pylist() == [{"mean": 11.0}]
