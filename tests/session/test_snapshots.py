"""Snapshots: the three classic recipes for programs that do not end, done right."""

from __future__ import annotations

import cProfile
import os
import pstats
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.collector.drain import Drain, seal
from sonde.errors import Error
from sonde.session import pstats_file, snapshots, stack_table
from sonde.session.target import find_sessions

SERVER = """
import signal, sys, threading, time
import sonde
sonde.start(stack_every="1ms", {settings})
begin = time.monotonic()
def leaf(n):
    s = 0
    for i in range(n): s += i
    return s
def handle():
    leaf(20000)
def serve_forever():
    while True:
        handle()
def thread_leaf():
    time.sleep(0.01)
def thread_work():
    while True:
        thread_leaf()
threading.Thread(target=thread_work, name="worker", daemon=True).start()
{before}
print("ready", flush=True)
serve_forever()
"""


def get(stats: dict, func: str) -> tuple:
    return next(value for (_file, _line, name), value in stats.items() if name == func)


def session_of(process):
    return find_sessions(str(process.pid), os.environ["SONDE_DIR"])[0]


def serve(start, settings: str = "collector=False", before: str = ""):
    return start(SERVER.format(settings=settings, before=before))


def count_leaves(process) -> int:
    """How often `leaf` was seen so far; nothing before the other thread was seen as well."""
    nodes = stack_table.read_nodes(session_of(process))
    seen: dict[str, int] = {}
    for place, samples in enumerate(nodes.samples):
        if samples:
            name = nodes.frame(place).func
            seen[name] = seen.get(name, 0) + samples
    return seen.get("leaf", 0) if "thread_leaf" in seen else 0


def check_growth(paths: list[str], ready_ns: int) -> None:
    """Counts grow in every snapshot; roots are there with their true time; threads have their own."""
    counts = []
    for path in paths:
        stats, (about,) = pstats_file.load(path)
        elapsed = (about.end_ns - about.start_ns) / 1e9
        counts.append(get(stats, "leaf")[1])
        root = get(stats, "serve_forever")
        # Starting up took a while before it; how long, the machine decides.
        assert (about.end_ns - ready_ns) / 1e9 * 0.95 - 0.3 < root[3] <= elapsed * 1.05
        assert [key[2] for key in get(stats, "thread_leaf")[4]] == ["thread_work"]
        assert [key[2] for key in get(stats, "leaf")[4]] == ["handle"]
        assert pstats.Stats(path).total_tt > 0
    assert counts == sorted(set(counts))


def test_from_another_process_while_the_program_runs_on(start, sonde_cli) -> None:
    process = serve(start)
    ready_ns, seen, paths = _core.clock_ns(), 0, []
    for _ in range(4):
        wait_for(lambda seen=seen: count_leaves(process) > seen + 20)
        done = sonde_cli("snapshot", process.pid, "--cumulative")
        seen = count_leaves(process)
        assert done.returncode == 0, done.stderr
        paths.append(done.stdout.strip())
    assert len(set(paths)) == 4
    check_growth(paths, ready_ns)
    rows = sonde.open(process.pid).query("FROM sonde.snapshot ORDER BY kind, number").to_pylist()
    assert [row["path"] for row in rows if row["kind"] == "total"] == paths
    ends = [0, *(row["end_t_ns"] for row in rows if row["kind"] == "delta")]
    assert [row["t_ns"] for row in rows if row["number"] > 1] == [
        *ends[1:4],
        *3 * [rows[0]["t_ns"]],
    ]
    assert process.poll() is None


def test_by_signal_at_once_even_in_one_long_c_call(start) -> None:
    process = start(
        "import sonde, sys\n"
        "sonde.start(collector=False, snapshot_signal='USR1', stack_every='1ms')\n"
        "print('ready', flush=True)\n"
        "def stuck():\n    sum(range(10**11))\n"
        "stuck()\n"
    )
    session = session_of(process)
    for number in range(1, 4):
        time.sleep(0.2)
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda number=number: snapshots.count(session) >= number)
    stats, _about = pstats_file.load(snapshots.name_file(session, 3, "total"))
    assert get(stats, "stuck")[3] > 0.3  # it never returned
    assert process.poll() is None


def test_a_signal_goes_on_to_the_programs_own_handler(start) -> None:
    process = start(
        "import signal, time\n"
        "def mine(number, frame): print('mine', flush=True)\n"
        "signal.signal(signal.SIGUSR1, mine)\n"
        "import sonde\n"
        "sonde.start(collector=False, snapshot_signal='USR1', stack_every='1ms')\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    time.sleep(0.1)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline().strip() == "mine"
    wait_for(lambda: snapshots.count(session_of(process)) == 1)


LATER = """
import faulthandler, os, signal, sys, time
import sonde
folder = sonde.start(collector=False, snapshot_signal='USR1')
def mine(number, frame): print('mine', flush=True)
def wait_for(word):
    log = folder + "/log"
    while not os.path.exists(log) or word not in open(log).read(): time.sleep(0.01)
"""


def test_a_handler_that_the_program_installs_later_does_not_end_snapshots(run) -> None:
    code = """
signal.signal(signal.SIGUSR1, mine)
while True:
    os.kill(os.getpid(), signal.SIGUSR1)
    if os.path.isdir(folder + "/snapshots"): break
    time.sleep(0.1)
sonde.stop()
signal.raise_signal(signal.SIGUSR1)
print(folder)
"""
    *lines, folder = run(LATER + code).stdout.split()
    assert len(lines) > 1 and set(lines) == {"mine"}
    found = sonde.open(folder).query(
        "SELECT detail FROM sonde.source_log WHERE source = 'snapshot.signal'"
    )
    assert "called after ours" in found.to_pylist()[0]["detail"]


@pytest.mark.parametrize(
    ("act", "word"),
    [
        ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "ignores SIGUSR1"),
        ("signal.signal(signal.SIGUSR1, signal.SIG_DFL)", "has reset SIGUSR1"),
        ("faulthandler.register(signal.SIGUSR1, chain=True)", "only if that handler passes it on"),
    ],
)
def test_what_the_program_does_to_the_signal_is_respected_and_recorded(run, act, word) -> None:
    code = f"""
{act}
wait_for("snapshot.signal is unavailable")
print(folder)
signal.raise_signal(signal.SIGUSR1)
"""
    done = run(LATER + code, check=False)
    assert done.returncode == (-signal.SIGUSR1 if "SIG_DFL" in act else 0)
    # It shows every thread that has a state, and one of ours may have one for a moment.
    assert ("most recent call first" in done.stderr) == ("faulthandler" in act)
    found = sonde.open(done.stdout.strip()).query(
        "SELECT detail FROM sonde.source WHERE source = 'snapshot.signal'"
    )
    assert word in found.to_pylist()[0]["detail"]


def test_after_stop_the_signal_is_what_it_was(run) -> None:
    done = run(
        "import signal, sonde, os\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "sonde.start(collector=False, snapshot_signal='USR1')\n"
        "sonde.stop()\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('alive')"
    )
    assert done.stdout.strip() == "alive"


def test_a_signal_that_comes_while_the_program_ends_does_not_end_it(run) -> None:
    run(
        "import atexit, os, signal, sonde\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGUSR1)  # called after ours\n"
        "sonde.start(collector=False, snapshot_signal='USR1')\n"
    )


def test_a_signal_that_comes_while_the_program_is_started_asks_for_a_snapshot(
    run, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "import os, signal, sys\n"
        "print('SONDE_HELD' in os.environ, signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    python = Path(sys.executable)
    for event, word, command in (
        ("os.exec", "", [str(program)]),
        ("import", "argparse", ["--", python.name, str(program)]),  # found along PATH
    ):
        done = run(
            "import os, signal, sys\n"
            "def ask(event, args):\n"
            f"    if event == {event!r} and {word!r} in str(args[0]):\n"
            "        os.kill(os.getpid(), signal.SIGUSR1)\n"
            "sys.addaudithook(ask)\n"
            f"sys.argv[1:] = ['run', '--set', 'snapshot.signal=USR1', *{command!r}]\n"
            "from sonde.__main__ import main\n"
            "main()",
            PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        )
        assert (done.stdout.strip(), done.returncode) == ("False set()", 0), done.stderr


def test_sonde_run_holds_no_signal_back_for_a_program_that_would_not_let_it_through(run) -> None:
    code = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    for options in (["--set", "snapshot.signal=USR1"], []):
        done = run(
            "import sys\n"
            "from sonde.__main__ import main\n"
            f"sys.argv[1:] = ['run', *{options!r}, '--', sys.executable, '-S', '-c', {code!r}]\n"
            "main()"
        )
        assert done.stdout.strip() == "set()", done.stderr


def test_periodically_from_an_asyncio_program_whose_loop_is_blocked(start) -> None:
    process = start(
        "import asyncio, time, sonde\n"
        "sonde.start(snapshot_every='300ms', stack_every='1ms')\n"
        "def work():\n    time.sleep(0.05); sum(range(200000))\n"
        "async def main():\n"
        "    while True:\n"
        "        work()  # blocks the loop: no timer of its own could ever run\n"
        "        await asyncio.sleep(0)\n"
        "print('ready', flush=True)\n"
        "asyncio.run(main())\n"
    )
    session = session_of(process)
    wait_for(lambda: snapshots.count(session) >= 4, 30)
    counts, times = [], []
    for number in range(1, 5):
        stats, (about,) = pstats_file.load(snapshots.name_file(session, number, "total"))
        counts.append(get(stats, "work")[1])
        times.append((get(stats, "main")[3], (about.end_ns - about.start_ns) / 1e9))
    assert counts == sorted(set(counts))
    # How long the start takes, before main(), is the machine's affair.
    assert all(elapsed * 0.5 - 1.0 < main <= elapsed * 1.05 + 0.1 for main, elapsed in times)
    assert [main for main, _ in times] == sorted(main for main, _ in times)


def test_from_inside(run) -> None:
    done = run(
        "import sonde, time\n"
        "sonde.start(collector=False, stack_every='1ms')\n"
        "def work():\n"
        "    end = time.monotonic() + 0.3\n"
        "    while time.monotonic() < end: pass\n"
        "work()\n"
        "print(sonde.snapshot()); work(); print(sonde.snapshot(cumulative=True))"
    )
    delta, total = done.stdout.split()
    first, both = (get(pstats_file.load(file)[0], "work")[3] for file in (delta, total))
    assert 0 < first < both  # how much of it was sampled is the machine's affair


# ---- arithmetic ------------------------------------------------------------------------------------


def test_deltas_add_up_to_the_cumulative_one_exactly(start, sonde_cli, tmp_path) -> None:
    process = serve(start)
    session = session_of(process)
    for _ in range(5):
        time.sleep(0.15)
        files = snapshots.take(session)
    deltas = [snapshots.name_file(session, n, "delta") for n in range(1, 6)]
    out = tmp_path / "sum.prof"
    done = sonde_cli("snapshot", "merge", *deltas, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert pstats_file.load(str(out))[0] == pstats_file.load(files["total"])[0]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [(("total", "total"), "count the earlier one twice"), (("delta", "total"), "contains the other"),
     (("delta", "delta"), "overlap")],
)  # fmt: skip
def test_what_counts_the_same_time_twice_is_not_added(start, sonde_cli, tmp_path, kinds, said):
    process = serve(start)
    session = session_of(process)
    for _ in range(2):
        time.sleep(0.1)
        snapshots.take(session)
    first = snapshots.name_file(session, 2, kinds[0])
    second = snapshots.name_file(session, 2 if kinds[0] != kinds[1] else 1, kinds[1])
    if kinds == ("delta", "delta"):
        second = first
    done = sonde_cli("snapshot", "merge", first, second, "-o", str(tmp_path / "sum.prof"))
    assert done.returncode == 1 and said in done.stderr
    assert not (tmp_path / "sum.prof").exists()


def test_deltas_of_two_processes_are_added(start, sonde_cli, tmp_path) -> None:
    files = []
    for _ in range(2):
        session = session_of(serve(start))
        time.sleep(0.2)
        files.append(snapshots.take(session)["delta"])
    done = sonde_cli("snapshot", "merge", *files, "-o", str(tmp_path / "sum.prof"))
    assert done.returncode == 0, done.stderr
    whole = pstats_file.load(str(tmp_path / "sum.prof"))[0]
    parts = [pstats_file.load(path)[0] for path in files]
    counts = [sum(v[1] for k, v in part.items() if k[2] == "leaf") for part in (whole, *parts)]
    assert counts[0] == counts[1] + counts[2] > 0


def test_diff_shows_what_changed(tmp_path, sonde_cli) -> None:
    before = {("a.py", 1, "f"): (1, 1, 3.0, 3.0, {}), ("a.py", 9, "g"): (1, 1, 1.0, 1.0, {})}
    after = {("a.py", 1, "f"): (1, 1, 1.0, 1.0, {}), ("a.py", 9, "h"): (1, 1, 1.0, 1.0, {})}
    for name, stats in (("one", before), ("two", after)):
        (tmp_path / name).write_bytes(pstats_file.dump(stats))
    done = sonde_cli(
        "snapshot", "diff", str(tmp_path / "one"), str(tmp_path / "two"), "--format", "csv"
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(",")[:5] for line in done.stdout.splitlines()[1:]]
    assert sorted(rows) == [
        ["f", "a.py:1", "75.0", "50.0", "-25.0"],
        ["g", "a.py:9", "25.0", "0.0", "-25.0"],
        ["h", "a.py:9", "0.0", "50.0", "50.0"],
    ]


# ---- files ---------------------------------------------------------------------------------------------


def test_a_reader_never_sees_a_broken_file(start) -> None:
    process = serve(start)
    session = session_of(process)
    seen, broken, done = set(), [], threading.Event()

    def poll() -> None:
        folder = session.path(snapshots.FOLDER)
        while not done.is_set():
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.endswith(".prof"):
                    try:
                        pstats.Stats(os.path.join(folder, name))
                        seen.add(name)
                    except FileNotFoundError:
                        continue
                    except Exception as error:
                        broken.append((name, repr(error)))
            time.sleep(0.001)

    reader = threading.Thread(target=poll)
    reader.start()
    for _ in range(200):
        snapshots.take(session, keep=20)
    done.set()
    reader.join()
    assert not broken and seen
    assert snapshots.count(session) == 200
    left = [name for name in os.listdir(session.path(snapshots.FOLDER)) if name.endswith(".prof")]
    assert len(left) == 40  # the oldest have gone


def test_old_files_of_exact_calls_go_as_well(start) -> None:
    session = session_of(serve(start, "snapshot_keep=3"))
    stats: pstats_file.Stats = {("f.py", 1, "f"): (1, 1, 0.1, 0.1, {})}
    paths = [snapshots.write_calls(session, stats) for _ in range(8)]
    assert [os.path.exists(path) for path in paths] == [False] * 5 + [True] * 3


def test_a_path_that_cannot_be_written_uses_up_no_interval(start, sonde_cli, tmp_path) -> None:
    process = serve(start)
    for bad in (tmp_path / "none" / "x.prof", tmp_path):
        done = sonde_cli("snapshot", process.pid, "-o", bad)
        assert done.returncode == 1 and "folder" in done.stderr
    assert snapshots.count(session_of(process)) == 0


def test_an_interval_without_a_sample_is_a_file_that_loads(start, sonde_cli) -> None:
    process = serve(start)
    session = session_of(process)
    assert sonde_cli("pause", process.pid).returncode == 0
    snapshots.take(session)
    files = snapshots.take(session)
    assert pstats.Stats(files["delta"]).total_calls == 0
    assert pstats_file.load(files["delta"])[0] == {}


def test_terminated_it_leaves_a_last_snapshot_and_its_own_exit_status(start) -> None:
    process = serve(start, "snapshot_every='1h'")
    session = session_of(process)
    # Of two threads, each of which has half of it.
    wait_for(lambda: sum(stack_table.read_nodes(session).wall_ns) > 1e9)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    wait_for(lambda: snapshots.count(session) == 1, 30)
    stats, (about,) = pstats_file.load(snapshots.name_file(session, 1, "delta"))
    assert get(stats, "serve_forever")[3] > 0.3
    assert about.pid == process.pid and about.kind == "delta" and about.number == 1


def test_killed_it_still_has_what_was_sampled(start) -> None:
    process = serve(start)
    session = session_of(process)
    time.sleep(0.5)
    process.kill()
    process.wait(10)
    stats, _about = pstats_file.load(snapshots.take(session)["total"])
    assert get(stats, "serve_forever")[3] > 0.3


def test_archived_it_still_has_what_was_sampled(start, sonde_cli) -> None:
    process = serve(start)
    session = session_of(process)
    wait_for(lambda: stack_table.read_newest(session))
    snapshots.take(session)
    wait_for(lambda: sum(stack_table.read_nodes(session).samples) > 100)
    process.kill()
    process.wait(10)
    before = snapshots.take(session)["total"]
    for path in session.find_rings():
        Drain(session, path).run(0.0, 0.0, ended=True)
    seal(session)
    assert session.read_sealed() is not None and not stack_table.has_nodes(session)
    done = sonde_cli("snapshot", session.folder, "--cumulative")
    assert done.returncode == 0, done.stderr
    assert pstats_file.load(done.stdout.strip())[0] == pstats_file.load(before)[0]
    # The snapshot before had all of it.
    assert pstats_file.load(snapshots.name_file(session, 3, "delta"))[0] == {}


def test_every_reader_opens_a_snapshot(start, tmp_path) -> None:
    process = serve(start)
    time.sleep(0.3)
    path = snapshots.take(session_of(process))["total"]
    commands = {
        "gprof2dot": [sys.executable, "-m", "gprof2dot", "-f", "pstats", path],
        "flameprof": [sys.executable, "-m", "flameprof", path],
        "snakeviz": [sys.executable, "-c", f"import pstats; from snakeviz.stats import table_rows, "
                     f"json_stats; s = pstats.Stats({path!r}); print(table_rows(s)); print(json_stats(s))"],
    }  # fmt: skip
    for name, command in commands.items():
        pytest.importorskip(name)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0 and "serve_forever" in done.stdout, (name, done.stderr)


def test_what_is_no_statistics_file_is_refused(tmp_path) -> None:
    path = tmp_path / "x.prof"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(Error, match="not a Python statistics file"):
        pstats_file.load(str(path))


def test_a_storm_of_signals_is_a_few_snapshots(start) -> None:
    process = start(
        "import os, signal, time, sonde\n"
        "sonde.start(collector=False, snapshot_signal='USR1')\n"
        "print('ready', flush=True)\n"
        "while True: os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.005)\n"
    )
    session = session_of(process)
    wait_for(lambda: snapshots.count(session) >= 2)
    time.sleep(1)
    process.kill()
    process.wait()
    time.sleep(0.5)  # one may still be writing
    assert snapshots.count(session) < 20


def test_a_signal_still_ends_the_programs_system_calls_early(run) -> None:
    done = run(
        "import os, signal, threading, time\n"
        "class Stop(Exception): pass\n"
        "def stop(*_): raise Stop\n"
        "signal.signal(signal.SIGUSR1, stop)\n"
        "import sonde\n"
        "sonde.start(collector=False, snapshot_signal='USR1')\n"
        "read, write = os.pipe()\n"
        "threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()\n"
        "late = threading.Timer(20, lambda: os.write(write, b'late')); late.daemon = True\n"
        "late.start()\n"
        "try: print(os.read(read, 4))\n"
        "except Stop: print('stopped')"
    )
    assert done.stdout.strip() == "stopped"


def test_in_a_child_that_is_not_recorded_the_signal_is_what_it_was(run) -> None:
    done = run(
        "import os, signal, time, sonde\n"
        "sonde.start(collector=False, follow=False, snapshot_signal='USR1')\n"
        "pid = os.fork()\n"
        "if pid == 0: os.kill(os.getpid(), signal.SIGUSR1); time.sleep(5); os._exit(0)\n"
        "print(os.waitpid(pid, 0)[1])"
    )
    assert done.stdout.strip() == str(int(signal.SIGUSR1))


def test_looking_at_a_paused_recording_adds_no_time(start, sonde_cli) -> None:
    process = serve(start)
    assert sonde_cli("pause", process.pid).returncode == 0
    session = session_of(process)
    before = sum(stack_table.read_nodes(session).wall_ns)
    time.sleep(1)
    assert sonde_cli("stacks", process.pid).returncode == 0
    assert sum(stack_table.read_nodes(session).wall_ns) - before < 0.2e9


def test_a_sum_is_not_added_to_its_parts_nor_wall_to_cpu_time(start, sonde_cli, tmp_path) -> None:
    session = session_of(serve(start))
    time.sleep(0.2)
    first = snapshots.take(session)["delta"]
    time.sleep(0.2)
    second = snapshots.take(session, weight="cpu")["delta"]
    time.sleep(0.2)
    third = snapshots.take(session)["delta"]
    both = str(tmp_path / "both.prof")
    assert sonde_cli("snapshot", "merge", first, third, "-o", both).returncode == 0
    for files, said in (((both, first), "overlap"), ((both, both), "overlap"),
                        ((first, second), "cannot be added")):  # fmt: skip
        done = sonde_cli("snapshot", "merge", *files, "-o", str(tmp_path / "x.prof"))
        assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_comparison_shows_short_paths_and_says_which_file_is_missing(tmp_path, sonde_cli) -> None:
    paths = [str(tmp_path / name) for name in ("a.prof", "b.prof")]
    for path, work in zip(paths, ("json.dumps([1])", "json.loads('[1]')"), strict=True):
        cProfile.runctx(f"import json; {work}", {}, {}, path)
    shown = sonde_cli("snapshot", "diff", *paths).stdout
    assert " json/__init__.py:" in shown and "/json/__init__.py:" not in shown, shown
    missing = sonde_cli("snapshot", "diff", paths[0], str(tmp_path / "c.prof"))
    assert "c.prof cannot be read: No such file or directory" in missing.stderr
