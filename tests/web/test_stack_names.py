"""The names of stacks on the page."""

from __future__ import annotations

from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import find_window
from sonde.web.stack_names import StackNames
from support.handmade_stacks import FakeRecording

SITE = "/opt/py/lib/python3.12/site-packages"


def test_the_lines_of_a_server_name_the_function_that_works_and_not_what_started_it() -> None:
    start = ("<module>", f"{SITE}/gunicorn/__main__.py", 4, 1)
    write = ("write", f"{SITE}/gunicorn/util.py", 348, 340)
    send = ("socket.send", "/opt/py/lib/python3.12/socket.py", 9, 1)
    recording = FakeRecording().see([start, write, send], 10)
    recording.see([start, ("app", "/job/shop.py", 9, 8)], 20)
    profile = Profile(recording, Selection(find_window(recording, None, None)))
    names, frames = StackNames(profile), profile.read_frames()
    names._has_mine = True  # as it reads from the recording
    for stack in frames.values():
        names._describe(stack)
    funcs, files, lines, *_ = names.list_new([0] * 6)["hot"]
    paths = names.list_new([0] * 6)["files"][1]
    found = [
        (func, paths[file], line) for func, file, line in zip(funcs, files, lines, strict=True)
    ]
    assert sorted(found) == [("app", "shop.py", 9), ("write", "gunicorn/util.py", 340)]
