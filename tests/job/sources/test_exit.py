"""python.exit_call: the call of sys.exit that ended a program, and that the program does not notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sonde
from sonde.session import list_sessions
from sonde.session.ending import Ending, find_ending

START = "import sys, sonde\nsonde.start(collector='off')\n"


def find_end(root: Path) -> Ending:
    (session,) = list_sessions(str(root))
    found = find_ending(session)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("call", "code", "told"),
    [
        ("sys.exit('no file: a.toml')", 1, 'sys.exit("no file: a.toml")'),
        ("sys.exit(3)", 3, "sys.exit(3)"),
        ("sys.exit(KeyError('a'))", 1, "sys.exit(\"KeyError: 'a'\")"),
        ("sys.exit('first line\\nsecond')", 1, 'sys.exit("first line…")'),
        ("sys.exit(-1)", 255, "sys.exit(255)"),
    ],
)
def test_why_it_ended_says_what_sys_exit_was_told_and_where(
    run, root, sonde_cli, call: str, code: int, told: str
) -> None:
    bare = run(f"import sys\n\ndef load(): {call}\nload()\n", check=False)
    done = run(START + f"def load(): {call}\nload()\n", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, bare.stdout, bare.stderr)
    end = find_end(root)
    assert end.code == code and end.sentence.startswith(
        f"ended with exit code {code}; it last called {told}"
    )
    assert end.sentence.endswith("program.py:3)") and "in load (" in end.sentence
    (session,) = list_sessions(str(root))
    (row,) = sonde.open(session.folder).query("SELECT * FROM python.exit_call").to_pylist()
    assert (row["code"], row["func"], row["lineno"]) == (code, "load", 3)
    assert told in sonde_cli("stacks", session.folder).stdout.splitlines()[0]
    assert told in sonde_cli("ps").stdout


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit()", 0),  # in order: nothing to tell
        ("sys.exit(0)", 0),
        ("try: sys.exit('a')\nexcept SystemExit: pass", 0),
        ("try: sys.exit('a')\nexcept SystemExit: raise SystemExit(4)", 4),  # another code than 1
        ("try: sys.exit('a')\nexcept SystemExit: pass\nraise KeyError", 1),  # that ended it
        ("import _thread, time\n_thread.start_new_thread(sys.exit, ('a',))\ntime.sleep(0.2)\n"
         "raise SystemExit(1)", 1),  # of another thread
        ("import os\ndef end(): sys.exit('a')\nif os.fork() == 0: os._exit(0)\n"
         "try: end()\nexcept SystemExit: sys.exit(None)", 0),
    ],
)  # fmt: skip
def test_a_call_that_did_not_end_the_program_is_not_told(
    run, root, program: str, code: int
) -> None:
    assert run(START + program + "\n", check=False).returncode == code
    end = find_end(root)
    assert end.code == code and "sys.exit" not in end.sentence


def test_exit_hooks_may_work_and_their_own_calls_end_nothing(run, root) -> None:
    hooks = """
import atexit, time
def other(): sys.exit("not this one")
def work():
    while time.thread_time() < begun + 2.3: pass
atexit.register(work)
atexit.register(other)
begun = time.thread_time()
sys.exit("the reason")
"""
    bare = run("import sys\n" + hooks, check=False)
    done = run(START + hooks, check=False)
    assert (done.returncode, done.stdout) == (1, bare.stdout)
    assert "the reason" in find_end(root).sentence


def test_wrong_calls_and_values_of_the_program_are_as_without_us(run, root) -> None:
    program = """
import atexit, enum, json, pickle
class Code(enum.IntEnum):
    BAD = 4
class Odd:
    def __str__(self): print("asked"); return "odd"
    __repr__ = __str__
def show(*args):
    try: sys.exit(*args)
    except BaseException as error:
        return type(error).__name__, getattr(error, "code", None), error.__traceback__.tb_next is None
print(show(1, 2), show(Code.BAD), show(("a", "b")), show("a" * 2000), show(True))
print(sys.exit.__name__, callable(sys.exit), sys.exit, sys.exit.__doc__)
try: pickle.loads(pickle.dumps(sys.exit))(5)
except SystemExit as error: print(error.code)
atexit.register(lambda: print("last"))
sys.exit(Odd())
"""
    bare = run("import sys\n" + program, check=False)
    done = run(START + program, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, bare.stdout, bare.stderr)
    assert "<__main__.Odd" in find_end(root).sentence or "Odd" in find_end(root).sentence
    (session,) = list_sessions(str(root))
    states = sonde.open(session.folder).query(
        "SELECT state FROM sonde.source WHERE source = 'exit'"
    )
    assert "failed" not in {row["state"] for row in states.to_pylist()}


@pytest.mark.parametrize("body", ["print('asked'); return int", "raise SystemError('asked')"])
def test_a_value_is_not_asked_what_it_is(run, root, body: str) -> None:
    program = f"""
class Odd:
    @property
    def __class__(self): {body}
class Told(Exception):
    @property
    def args(self): {body}
for odd in Odd(), Told("a"):
    try: sys.exit(odd)
    except SystemExit as error: print(type(error.code))
sys.exit("the reason")
"""
    bare = run("import sys\n" + program, check=False)
    done = run(START + program, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, bare.stdout, bare.stderr)
    assert "the reason" in find_end(root).sentence


def test_stop_gives_sys_exit_back_and_leaves_that_of_the_program_alone(run, root) -> None:
    done = run("""
import json, sys
import sonde
real, found = sys.exit, []
sonde.start(collector="off"); sonde.stop()
found.append(sys.exit is real)
sonde.start(collector="off")
ours = sys.exit
def mine(*args): ours(*args)
sys.exit = mine
sonde.stop()
found.append(sys.exit is mine)
print(json.dumps(found))
mine(6)
""", check=False)  # fmt: skip
    assert json.loads(done.stdout) == [True, True] and done.returncode == 6
