"""Fork without end from several threads at once: no child hangs or fails, and none of its rows is lost.

    python tests/stress/forks.py [SECONDS]        default: 60

Children end at once, sleep, fork again, or work and write a row; the latter say so with their exit
status, and as many rows must be there in the end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import sonde

WROTE = 3  # exit status
PROGRAM = f"""
import os, random, sys, threading, time
import sonde

END = time.monotonic() + float(sys.argv[1])
statuses = []

def live(how):
    if how < 0.4:
        return 0
    if how < 0.7:
        end = time.process_time() + how / 4
        while time.process_time() < end:
            pass
        with sonde.span("in a child"):
            pass
        return {WROTE}
    if how < 0.9:
        time.sleep(how / 4)
        return 0
    child = os.fork()
    if child == 0:
        time.sleep(0.15)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def fork_on(seed):
    chance = random.Random(seed)
    born = {{}}
    while time.monotonic() < END or born:
        if time.monotonic() < END and len(born) < 20:
            how = chance.random()
            child = os.fork()
            if child == 0:
                os._exit(live(how))
            born[child] = time.monotonic()
        for child in list(born):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                del born[child]
                statuses.append(os.waitstatus_to_exitcode(status))
            elif time.monotonic() - born[child] > 120:
                os.kill(child, 9)  # it hangs; its status will say so
        time.sleep(0.002)

sonde.start()
threads = [threading.Thread(target=fork_on, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*statuses)
"""


def fork_for(seconds: float, root: str) -> None:
    """Run the program, and hold its recordings against what its children said."""
    os.environ["SONDE_DIR"] = root
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    statuses = [int(word) for word in done.stdout.split()]
    assert done.stderr == "", done.stderr
    assert set(statuses) <= {0, WROTE}, sorted(set(statuses))
    question = "SELECT count(*) AS rows FROM event.span WHERE name = 'in a child'"
    (found,) = sonde.open("all").query(question).to_pylist()
    wrote = statuses.count(WROTE)
    assert found["rows"] == wrote, f"{wrote} children wrote a row, {found['rows']} are there"
    print(f"{len(statuses)} children ended as they should, {wrote} of them with a row that is kept")


if __name__ == "__main__":
    # The collector may still be writing there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        fork_for(float(sys.argv[1]) if sys.argv[1:] else 60, folder)
