"""What `import sonde; sonde.start()` costs the program: time, memory, threads, imports."""

from __future__ import annotations

import json
import sys

import child
from result import Result

# Nothing is imported beforehand that the measured lines would have to import themselves.
_CODE = """
import sys, time
def read_rss():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Rss:")) * 1024 / 1e6
before, rss = set(sys.modules), read_rss()
begin, cpu = time.perf_counter(), time.process_time()
{code}
cpu_ms = (time.process_time() - cpu) * 1e3
took_ms = (time.perf_counter() - begin) * 1e3
rss = read_rss() - rss
new = set(sys.modules) - before
import os, threading
own = sys.stdlib_module_names | {{"sonde"}}
foreign = sorted(name for name in new if name.partition(".")[0] not in own)
threads = len(threading.enumerate()) - 1 + len(sys._current_frames()) - 1
import json
print(json.dumps([took_ms, rss, threads, len(os.listdir("/proc/self/task")) - 1, foreign, cpu_ms]))
"""
_SUBJECTS = {
    "sonde": "import sonde\nassert sonde.start()",
    "import viztracer": "import viztracer",
    "import opentelemetry.sdk.trace": "import opentelemetry.sdk.trace",
}


def measure(rounds: int) -> list[Result]:
    """Each start in a fresh process and a fresh folder, so that it starts the collector, too."""
    found: dict[str, list[list]] = {name: [] for name in _SUBJECTS}
    for _ in range(3 * rounds):
        for name, code in _SUBJECTS.items():
            with child.open_root() as root:
                argv = [sys.executable, "-c", _CODE.format(code=code)]
                found[name].append(json.loads(child.run(argv, root)))

    def pick(name: str, at: int) -> list[float]:
        return [sample[at] for sample in found[name]]

    def beside(at: int) -> dict[str, list[float]]:
        return {name: pick(name, at) for name in _SUBJECTS if name != "sonde"}

    foreign = [sample[4] for sample in found["sonde"]]
    native = int(max(pick("sonde", 3)))
    return [
        Result("import sonde; sonde.start(): time", "ms", pick("sonde", 0), 30, peers=beside(0)),
        Result(
            "import sonde; sonde.start(): CPU time",
            "ms",
            pick("sonde", 5),
            peers=beside(5),
            note="steadier than the time where others use the machine",
        ),
        Result("import sonde; sonde.start(): RSS", "MB", pick("sonde", 1), 8, peers=beside(1)),
        Result(
            "sonde.start(): Python threads added",
            "",
            pick("sonde", 2),
            0,
            note=f"native threads added: {native}; counted by threading and by the interpreter",
        ),
        Result(
            "sonde.start(): imports from outside the standard library",
            "",
            [len(names) for names in foreign],
            0,
            note=", ".join(sorted({name for names in foreign for name in names})),
        ),
    ]
