"""Use an installed sonde as a new user would; print one line. Run by release/wheels.py."""

import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec

import sonde

JOB = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"


class Batch:
    loss: float


SONDE = os.path.join(os.path.dirname(sys.executable), "sonde")


def call(*words):
    command = [SONDE, *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


assert shutil.which("cc") is None and shutil.which("gcc") is None, "there is a compiler"
assert find_spec("sonde._delay") is not None, "programs that a recorded one starts are slower"
emit = sonde.table(Batch)
folder = sonde.start(collector="off")
emit(0.5)
with sonde.span("work"):
    sum(range(10**6))
sonde.stop()
assert os.path.isdir(folder)

job = subprocess.Popen(
    [SONDE, "run", "--set", "collector=off", "--", sys.executable, "-c", JOB],
    stdout=subprocess.PIPE, text=True,
)  # fmt: skip
try:
    assert job.stdout.readline() == "ready\n"
    assert str(job.pid) in call("ps")
    assert "<module>" in call("stacks", job.pid)
    call("stop", job.pid)
finally:
    job.kill()
    job.wait()
lacking = subprocess.run(
    [SONDE, "query", str(os.getpid()), "SELECT 1"],
    stderr=subprocess.PIPE, text=True, check=False,
)  # fmt: skip
assert lacking.stderr.endswith("pip install 'sonde[tools]'\n"), lacking.stderr
print(f"{platform.python_version()}: import, start, emit, stop, run, ps, stacks")
