"""Record 100,000 rows a second and stacks at 1 kHz under a small limit; nothing may grow.

    python tests/stress/soak.py [SECONDS] [ROWS_PER_SECOND]        default: 300 s, 100,000

The job's memory, the collector's memory and the size of the recordings are read every two seconds;
from a third of the time on they must stay where they are. The collector takes more while it merges
files, now and then, so that the median counts. Then every row must be kept or counted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import sonde
from sonde.collector.retention import measure_bytes

LIMIT = 200 * 2**20
GROWTH = 8 * 2**20  # of memory: what Python and Arrow may take in between
LONG = 60  # readings: in a short run everything still grows to its size
PROGRAM = """
import sys, time
import sonde

class Beat:
    n: sonde.i64
    half: sonde.f64
    word: sonde.text | None

emit = sonde.table(Beat)
print(sonde.start(stack_every="1ms", retain_bytes=sys.argv[3]), flush=True)
end, pace, n = time.monotonic() + float(sys.argv[1]), float(sys.argv[2]), 0
begin = time.monotonic()
while (now := time.monotonic()) < end:
    due = int((now - begin) * pace)
    while n < due:
        emit(n, n / 2, "even" if n % 2 == 0 else None)
        n += 1
    time.sleep(0.002)
print(n, flush=True)
"""


def read_rss(pid: int) -> int:
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGESIZE")  # without mapped files


def find_collector(root: Path) -> int | None:
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"collector.loop" in words and str(root).encode() in words:
            return int(entry.name)
    return None


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    pace = float(sys.argv[2]) if len(sys.argv) > 2 else 100_000.0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "sonde"
        os.environ["SONDE_DIR"] = str(root)
        job = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(seconds), str(pace), str(LIMIT)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert job.stdout is not None
        session = job.stdout.readline().strip()
        seen = watch(job, session, root)
        written = int(job.stdout.readline())
        job.wait()
        return judge(session, written, seen)


def watch(job: subprocess.Popen[str], session: str, root: Path) -> list[tuple[int, int, int]]:
    """Return memory of the job, memory of the collector and size of the recording over time."""
    seen = []
    while job.poll() is None:
        time.sleep(2)
        collector = find_collector(root)
        try:
            job_bytes, own = read_rss(job.pid), read_rss(collector) if collector else 0
        except OSError:
            continue  # it has just ended
        seen.append((job_bytes, own, measure_bytes(session)))
    return seen


def judge(session: str, written: int, seen: list[tuple[int, int, int]]) -> int:
    settled = seen[len(seen) // 3 :]
    wrong = []
    for at, name in enumerate(("job", "collector")):
        sizes = [one[at] for one in settled if one[at]]
        third = max(1, len(sizes) // 3)
        early, late = median(sizes[:third] or [0]), median(sizes[-third:] or [0])
        most = max(sizes, default=0) / 2**20
        print(
            f"memory of the {name}: {early / 2**20:.1f} MiB, later {late / 2**20:.1f} MiB, at most "
            f"{most:.1f} MiB"
        )
        if len(seen) >= LONG and late > early + GROWTH:
            wrong.append(f"the memory of the {name} grows")
    largest = max(one[2] for one in settled)
    print(f"recording: at most {largest / 2**20:.1f} MiB of {LIMIT / 2**20:.0f} MiB")
    if largest > 1.25 * LIMIT:
        wrong.append("the recording is larger than it may be")
    recording = sonde.open(session)
    loss = recording.query("SELECT * FROM sonde.loss WHERE table_name = 'job.beat'").to_pylist()[0]
    right = recording.query(
        "SELECT count(*) AS kept, count(DISTINCT n) AS different, max(n) AS last, count(*) FILTER "
        "(half IS DISTINCT FROM n / 2 OR word IS DISTINCT FROM CASE WHEN n % 2 = 0 THEN 'even' END)"
        " AS wrong FROM job.beat"
    ).to_pylist()[0]
    print(f"rows: {written:,} written, {right['kept']:,} kept; {loss}")
    if right["wrong"] or right["different"] != right["kept"] or right["last"] != written - 1:
        wrong.append(f"rows are wrong: {right}")
    if loss["written"] != written or loss["kept"] != right["kept"]:
        wrong.append("not every row is kept or counted")
    print("; ".join(wrong) or "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
