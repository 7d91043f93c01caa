"""See the tool at work: a slow job, what is wrong with it, the fix, and what that changed."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from importlib.util import find_spec

import sonde.demo
from sonde import environ
from sonde.cli import _options
from sonde.cli._terminal import send
from sonde.errors import Error
from sonde.store.recording import open_recording

GROUP = "learn"
EXAMPLES = (
    "sonde demo",
    "sonde demo --duration 20s --plain",
)
_STARVED = 0.5  # of a processor: both jobs always have work
_MOST_LINES = 12  # of the tree


@dataclass(frozen=True)
class _Story:
    """A program of sonde.demo, and how it looked before somebody made it fast."""

    file: str
    plot: str
    slow: str  # what stood there
    fast: str  # what stands in the file
    fix: str


_ORDERS = _Story(
    "orders.py",
    "A small shop keeps its orders in memory. Customers say that it is slow.",
    """\
        self.orders.append(order)
        gc.collect()  # keep the memory small
""",
    """\
        self.orders.append(order)
""",
    "Nothing here makes garbage that only a full collection frees, so the line can go.",
)
_TRAIN = _Story(  # needs torch
    "train.py",
    "A small transformer learns to write its own source text. It should be faster.",
    """\
        self.text = text

    def __len__(self):
        return len(self.text) - CONTEXT

    def __getitem__(self, at):
        data = torch.tensor([self.letters.index(letter) for letter in self.text])
        return data[at : at + CONTEXT], data[at + 1 : at + CONTEXT + 1]
""",
    """\
        self.data = torch.tensor([self.letters.index(letter) for letter in text])

    def __len__(self):
        return len(self.data) - CONTEXT

    def __getitem__(self, at):
        return self.data[at : at + CONTEXT], self.data[at + 1 : at + CONTEXT + 1]
""",
    "Each example turns the whole text into numbers again; once is enough, before training.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _options.add_span(parser, "-d", "--duration", what="how long the job runs, each time",
                      default="7s")  # fmt: skip
    parser.add_argument("--plain", action="store_true",
                        help="take a job without PyTorch even if that is installed")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    trains = not args.plain and find_spec("torch") is not None
    story = _TRAIN if trains else _ORDERS
    program = _Program(story, args.duration)
    print(story.plot)
    program.write(slow=True)
    before = program.record()
    _show("What is wrong?", "advise", str(before), "--piece=1s")
    _show("Where does the time go?", "tree", str(before), f"--limit={_MOST_LINES}")
    report = os.path.join(open_recording(before).sessions[0].folder, "report.html")
    _show("All of it on one page, to look at or to mail", "report", str(before), "-o", report)
    program.write(slow=False)
    program.tell_fix()
    after = program.record()
    _show("Did it help?", "compare", str(before), str(after))
    if trains:
        _show("And now, module by module?", "modules", str(after))
    print(f"\nNext: sonde ui {after}, or record a program of your own: sonde run YOUR.py")
    print(f"Open the page of the slow job: xdg-open {report}")
    return 0


class _Program:
    """The job, as a file beside the recordings: what is shown of it later must find its source."""

    def __init__(self, story: _Story, seconds: float) -> None:
        self._story, self._seconds = story, seconds
        self._folder = os.path.join(environ.find_root(), ".demo")
        with open(os.path.join(next(iter(sonde.demo.__path__)), story.file), "rb") as file:
            self._text = file.read().decode()

    def write(self, *, slow: bool) -> None:
        """Write the program, slow or as it should be."""
        text = self._text
        if slow:
            text = text.replace(self._story.fast, self._story.slow)
            if "gc." in self._story.slow:
                text = text.replace("import argparse\n", "import argparse\nimport gc\n")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        with open(os.path.join(self._folder, self._story.file), "w", encoding="utf-8") as file:
            file.write(text)

    def tell_fix(self) -> None:
        """Say what is changed, as a patch."""
        slow, fast = (text.splitlines() for text in (self._story.slow, self._story.fast))
        gone = [f"- {line}" for line in slow if line not in fast and line.strip()]
        come = [f"+ {line}" for line in fast if line not in slow and line.strip()]
        _say("The fix")
        print(textwrap.fill(self._story.fix, 98))
        colours = {"-": "\x1b[31m", "+": "\x1b[32m"} if _is_coloured() else {}
        for line in [*gone, *come]:
            begin = colours.get(line[0], "")
            send(sys.stdout, f"{begin}{line}{begin and chr(27) + '[0m'}\n")

    def record(self) -> int:
        """Run it under the recorder and return its pid."""
        print()
        _tell_command("run", self._story.file)
        job = subprocess.Popen(
            [sys.executable, self._story.file, f"--seconds={self._seconds}"],
            env=environ.make_child_environment(SONDE="1"), cwd=self._folder,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        begin, used_s = time.monotonic(), _read_cpu()
        _show_progress(job, self._seconds)
        printed, _ = job.communicate()
        share = (_read_cpu() - used_s) / (time.monotonic() - begin)
        if job.returncode:
            raise Error(f"the job of the demo ended with code {job.returncode}")
        print(*printed.splitlines()[-1:])
        if share < _STARVED:
            print(describe_starved(share))
        return job.pid


def describe_starved(share: float) -> str:
    """Return what a user should know of a job that got so little of a processor."""
    return (
        f"Other programs kept the machine busy: the job got {100 * share:.0f} % of a processor, "
        "which may hide what is wrong.\nTry again when it is quiet, or with --duration 30s."
    )


def _read_cpu() -> float:
    """Return the CPU time of the processes that we started and that ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(question: str, command: str, *words: str) -> None:
    """Ask a question with a command, as a user would type it."""
    _say(question)
    _tell_command(command, *words)
    sys.stdout.flush()
    # Without an input it never waits for a key in a pager.
    subprocess.run([sys.executable, "-m", "sonde", command, *words], stdin=subprocess.DEVNULL,
                   check=False)  # fmt: skip


def _say(title: str) -> None:
    begin, end = ("\x1b[1m", "\x1b[0m") if _is_coloured() else ("", "")
    send(sys.stdout, f"\n{begin}{title}{end}\n")


def _tell_command(*words: str) -> None:
    print("$ sonde", *words, flush=True)


def _is_coloured() -> bool:
    return sys.stdout.isatty() and environ.uses_colour()


def _show_progress(job: subprocess.Popen[str], seconds: float) -> None:
    start = time.monotonic()
    while job.poll() is None and sys.stdout.isatty():
        done = min(1.0, (time.monotonic() - start) / (seconds + 0.2))
        send(sys.stdout, f"\r[{'#' * int(30 * done):<30}] recording pid {job.pid}")
        sys.stdout.flush()
        time.sleep(0.1)
    if sys.stdout.isatty():
        send(sys.stdout, "\r" + " " * 60 + "\r")
