"""A program waits for the end of another one, and reads what it wrote only then: the pipe is full long before.

As in localstack pull request 1101 and rackerlabs/configsnap issue 100."""

from __future__ import annotations

RULE, CAUSE = "hang", "room in a pipe"
LINE = "run_tool"
TWIN, ENDS = True, -9
LIMITS = {"hang.least_s": 3}

if __name__ == "__main__":
    import subprocess
    import sys

    from loop import FIXED, end_later

    LISTING = "import sys; [print('file', number, 'x' * 60) for number in range(5000)]"

    def run_tool() -> bytes:
        tool = subprocess.Popen([sys.executable, "-S", "-c", LISTING], stdout=subprocess.PIPE)
        if FIXED:
            return tool.communicate()[0]
        tool.wait()
        return tool.stdout.read()

    def list_files() -> int:
        return run_tool().count(b"\n")

    end_later()
    while True:
        list_files()
