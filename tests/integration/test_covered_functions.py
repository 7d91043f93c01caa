"""Functions of ours in front of the program's look like those: whoever asks sees no difference."""

from __future__ import annotations

import json
import os

# Each place where a program may find a function that we stand in front of.
PROGRAM = """
import _posixsubprocess, _thread, copy, inspect, json, os, pickle, posix, pydoc, subprocess, sys, threading
def tell(function):
    try: signature = str(inspect.signature(function))
    except (TypeError, ValueError) as error: signature = str(error)
    try: restored = pickle.loads(pickle.dumps(function)) is function
    except Exception as error: restored = str(error)
    return [
        function.__name__, function.__qualname__, function.__module__, function.__doc__, repr(function),
        signature, restored, repr(function.__self__), type(function).__name__, pydoc.render_doc(function),
        inspect.isbuiltin(function), inspect.isroutine(function), copy.deepcopy(function) is function,
        sorted(set(dir(function))), getattr(function, "__text_signature__", None),
        hash(function) == hash(copy.copy(function)),
    ]
def tell_all():
    return {
        "exit": tell(sys.exit), "_exit": tell(os._exit), "posix_spawn": tell(os.posix_spawn),
        "fork": tell(os.fork), "fork_exec": tell(_posixsubprocess.fork_exec), "kill": tell(os.kill),
        "excepthook": tell(sys.excepthook), "threads": tell(threading.excepthook), "exec": tell(os.execv),
        "same": [os._exit is posix._exit, os.posix_spawn is posix.posix_spawn, os.fork is posix.fork,
                 sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__,
                 threading.excepthook is _thread._excepthook, os._exit == posix._exit,
                 getattr(subprocess, "_fork_exec", None) in (None, _posixsubprocess.fork_exec)],
    }
bare = tell_all()
originals = sys.exit, os._exit, os.posix_spawn, sys.excepthook, threading.excepthook
import sonde
told = {}
for turn in "first", "second":
    folder = sonde.start(collector="off")
    assert sys.exit is not originals[0] and os._exit is not originals[1]
    told[turn] = tell_all()
    sonde.stop()
    assert originals == (sys.exit, os._exit, os.posix_spawn, sys.excepthook, threading.excepthook)
print(json.dumps([bare, told]))
"""


def test_functions_in_front_of_others_say_of_themselves_what_those_say(run) -> None:
    bare, told = json.loads(run(PROGRAM).stdout)
    assert told["first"] == bare
    assert told["second"] == bare


def test_a_function_that_the_program_has_kept_serves_the_next_recording(run, root) -> None:
    run(
        "import sonde, sys\n"
        "sonde.start(collector='off')\n"
        "from sys import exit as leave\n"
        "sonde.stop()\n"
        "sonde.start(collector='off')\n"
        "assert leave is sys.exit\n"
        "leave('the reason')\n",
        check=False,
    )
    from sonde.session import list_sessions
    from sonde.session.ending import find_ending

    told = [find_ending(one).sentence for one in list_sessions(str(root))]
    assert any("the reason" in one for one in told)


def test_the_exit_status_is_known_also_where_it_has_its_name(run, root) -> None:
    from sonde.session import list_sessions
    from sonde.session.ending import find_ending

    done = run("import os, sonde; sonde.start(collector='off'); os._exit(status=5)", check=False)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    assert (done.returncode, find_ending(session).code) == (5, 5)


WRAPPED = """
import inspect, json, sys
class Flask:
    def full_dispatch_request(self, extra: int = 3) -> str:
        "Answer a request."
        return "answer"
    full_dispatch_request.marked = True
before = Flask.full_dispatch_request
def tell(function):
    return [function.__name__, function.__qualname__, function.__module__, function.__doc__,
            str(inspect.signature(function)), function.marked, inspect.getsourcelines(function)[1]]
bare = tell(before)
from sonde.job.sources._covers import Covers
covers = Covers()
covers.put(Flask, "full_dispatch_request", lambda old: lambda *args, **kwargs: old(*args, **kwargs))
assert Flask.full_dispatch_request is not before and Flask().full_dispatch_request() == "answer"
print(json.dumps([bare, tell(Flask.full_dispatch_request)]))
covers.take_away()
assert Flask.full_dispatch_request is before
"""


def test_methods_of_frameworks_keep_their_signature_and_text(run, tmp_path) -> None:
    program = tmp_path / "framework.py"
    program.write_text(WRAPPED)
    bare, ours = json.loads(run(f"import runpy; runpy.run_path({str(program)!r})").stdout)
    assert ours == bare
