"""The profile of this process: what is recorded for it, when, and which file it goes to.

A profile begins with the first `run` and ends with dump(True), with another configuration or with
the program. In between, the program opens and closes windows of time; what happens in them goes
into the file."""

from __future__ import annotations

import atexit
import os
import re
from array import array
from collections.abc import Callable, Sequence

from sonde import _core, environ
from sonde.errors import NotRun
from sonde.job.fork import end_with_multiprocessing
from sonde.job.mxnet.framework import FrameworkRecording, make_sum, read_operators, settle
from sonde.job.mxnet.memory import write_memory
from sonde.job.mxnet.settings import NOWHERE, MxnetSettings
from sonde.job.mxnet.writer_line import WriterLine
from sonde.job.notice import print_notice
from sonde.job.recorder import recorder
from sonde.job.source_context import SourceContext
from sonde.session.profiler_line import join, name_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sonde.job.fork import ForkLock

DUMP_S, EXIT_S, SUMS_S = 60.0, 20.0, 10.0
_MAX_WINDOWS = 1000  # a program may pause in each of its steps, for days


class MxnetProfile:
    """One profile: its file, and the windows of time that go into it."""

    def __init__(self, settings: MxnetSettings, path: str, *, is_child: bool = False) -> None:
        self.settings, self.path, self.is_child = settings, path, is_child
        self.pid = os.getpid()
        self.windows = array("q")  # begin, end, begin, …: an odd number means that the last is open
        self.folder: str | None = None  # of the session

    @property
    def is_open(self) -> bool:
        """Whether what happens now goes into the file."""
        return len(self.windows) % 2 == 1

    def toggle(self) -> int:
        """Open or close a window, and return the time."""
        t_ns = _core.clock_ns()
        self.windows.append(t_ns)
        if len(self.windows) > 2 * _MAX_WINDOWS:
            self.windows = array("q", join(self.windows, _MAX_WINDOWS // 2))
        return t_ns

    def describe(self) -> dict[str, object]:
        """Return what the writer process must know."""
        return {
            "do": "begin",
            "session": self.folder,
            "path": None if self.path == NOWHERE else self.path,
            "parts": self.settings.parts,
            "period_s": self.settings.period_s,
            "windows": list(self.windows),
            "is_child": self.is_child,
        }


class State:
    """The state that the functions of `sonde.profiler` change."""

    def __init__(self) -> None:
        self.settings = MxnetSettings({})
        self.profile: MxnetProfile | None = None
        self.has_run = self._hooked = False
        self.last_path: str | None = None  # of the last profile that ended
        self._framework = FrameworkRecording()
        self._sums: Sequence[Sequence[Any]] = []  # of the last profile that ended
        self._memory: dict[str, dict[str, float]] = {}  # of the last profile that ended
        self._label: str | None = None  # goes before or into the file's name; see _name_file
        self._reset_ns = 0
        self._writer = WriterLine()

    @property
    def lock(self) -> ForkLock:
        """The recorder's lock: each calls the other, so two locks would be taken in both orders."""
        return recorder.lock

    # ---- requests --------------------------------------------------------------------------------

    def configure(self, settings: MxnetSettings, label: str | None = None) -> None:
        """Apply another configuration. If it names another file, the current profile ends, and a
        new one begins if a window was open."""
        settings.check_path()
        with self.lock:
            before, self.settings, self._label = self.profile, settings, label
            if before is None:
                _gate(False)
            elif self._name_file() == before.path:
                before.settings = settings
                if before.folder is not None:
                    self._send_profile(before)
            else:
                was_open = before.is_open
                self._guard(lambda: self._finish(before, 0))
                if was_open:
                    self.run()

    def run(self) -> None:
        """Open a window of the profile; begin a profile if there is none."""
        self._guard(self._run)

    def halt(self) -> None:
        """Close the window; the profile keeps what it has."""
        with self.lock:
            _gate(False)
            profile = self.profile
            if profile is not None and profile.is_open:
                self._toggle(profile)

    def resume(self) -> None:
        """Open a window again after `halt`; do nothing if there is no profile."""
        with self.lock:
            if self.profile is not None:
                self.run()

    def dump(self, finished: bool, timeout_s: float = DUMP_S) -> None:
        """Write the file; wait for it unless the timeout is 0; end the profile if `finished`."""
        with self.lock:
            profile = self.profile
            if profile is None and not self.has_run:
                raise NotRun("the profiler has not run; call set_config() and set_state('run')")
        if profile is None:
            return  # the profile has ended, and its file is written
        work = self._finish if finished else self._write
        self._guard(lambda: work(profile, timeout_s))

    def read_sums(self) -> tuple[Sequence[Sequence[Any]], dict[str, dict[str, float]]]:
        """Return the sums of everything in the profile, or in the last one, and the memory
        statistics by device, as far as there are readings."""
        with self.lock:
            profile = self.profile
            if profile is None:
                return self._sums, self._memory
            sums = _list_sums()
        settle(profile.is_open)
        answer = self._writer.ask(SUMS_S, do="sums", since_ns=self._reset_ns)
        return [*sums, *_find_modules(answer)], _find_memory(answer)

    def reset_sums(self) -> None:
        """Reset all sums."""
        with self.lock:
            _core.events_reset()
            _core.operators_reset()
            self._sums, self._memory, self._reset_ns = [], {}, _core.clock_ns()

    # ---- the work --------------------------------------------------------------------------------

    def _guard(self, work: Callable[[], object]) -> None:
        """Do `work` so that no failure of ours reaches the program. Signals are not held back: a
        dump takes a while, and Ctrl-C must end it."""
        SourceContext(recorder, "profiler").guard(work)()

    def _run(self) -> None:
        with self.lock:
            # Set even if nothing can be recorded, because a dump must not raise then.
            self.has_run = True
            self._hook()
            if self.profile is None:
                self._begin()
            if self.profile is not None and not self.profile.is_open:
                self._toggle(self.profile)
            _gate(True)

    def _begin(self) -> None:
        profile = MxnetProfile(self.settings, self._name_file())
        if recorder.session is None or recorder.parked:
            # If this fails, a line on stderr says so, and the program keeps running.
            recorder.start(profile.settings.make_recording())
            recorder.ends_with_profile = recorder.session is not None
        if recorder.session is None:
            return
        self._framework.begin(profile.settings)
        self._adopt(profile)
        self.reset_sums()
        self.profile = profile

    def _adopt(self, profile: MxnetProfile) -> None:
        """Make the profile part of the current recording."""
        assert recorder.session is not None
        profile.folder = recorder.session.folder
        if not self._send_profile(profile):
            recorder.note("profiler", "failed", "the process that writes traces cannot be started")

    def _toggle(self, profile: MxnetProfile) -> None:
        """Open or close a window."""
        self._writer.send(do="toggle", t_ns=profile.toggle())

    def _finish(self, profile: MxnetProfile, timeout_s: float) -> None:
        """Write the last file of a profile, and wait for it unless the timeout is 0."""
        with self.lock:
            if self.profile is not profile:
                return  # another thread has finished it
            self.halt()
            self._sums = _list_sums()
            self.profile, self.last_path = None, profile.path
        try:
            self._write(profile, timeout_s, finished=True)
        finally:
            with self.lock:
                if self.profile is None:
                    self._framework.end()
                if self.profile is None and recorder.ends_with_profile:
                    recorder.stop()

    def _write(self, profile: MxnetProfile, timeout_s: float, *, finished: bool = False) -> None:
        if profile.folder is None:
            return  # a child that has recorded nothing
        self._revive(profile)
        request: dict[str, object] = {"do": "dump", "finished": finished}
        if timeout_s > 0:
            settle(profile.is_open)
        if finished and profile.settings.aggregates:
            request["since_ns"] = self._reset_ns
        if timeout_s == 0:
            self._writer.send(**request)
            if not self._writer.is_connected and self._send_profile(profile):
                self._writer.send(**request)
        else:
            self._wait(profile, request, timeout_s)
        write_memory(profile.settings.memory_prefix, profile.settings.parts)

    def _wait(self, profile: MxnetProfile, request: dict[str, object], timeout_s: float) -> None:
        """Ask for the file; print one line if it is not written."""
        answer = self._writer.ask(timeout_s, **request)
        if answer is None and not self._writer.is_connected:
            # The writer process had been killed, and nobody had noticed.
            self._revive(profile)
            answer = self._writer.ask(timeout_s, **request)
        if "since_ns" in request:
            self._memory = _find_memory(answer)
            self._sums = [*self._sums, *_find_modules(answer)]
        if answer is None and self._writer.is_connected:
            print_notice(f"{profile.path} is not written after {timeout_s:g} s; it will be later")
        elif answer is None:
            print_notice(f"{profile.path} is not written: the process that writes it has ended")
        elif answer.get("error"):
            print_notice(f"{profile.path} is not written: {answer['error']}")

    def _revive(self, profile: MxnetProfile) -> None:
        """Start another writer process if the last one is gone."""
        if not self._writer.is_connected:
            self._send_profile(profile)

    def _send_profile(self, profile: MxnetProfile) -> bool:
        """Describe the profile to the writer process; return False if none can be started. The
        first try may find that the process has exited: it does so a minute after a profile."""
        assert profile.folder is not None
        for _ in range(2):
            if not self._writer.start(os.path.dirname(profile.folder)):
                return False
            self._writer.send(**profile.describe())
            if self._writer.is_connected:
                return True
        return False

    def _name_file(self) -> str:
        """Return the path of this process's profile: no two processes of a job share a file."""
        path, identity = self.settings.path, environ.read_identity()
        if path == NOWHERE:
            return path
        if self._label is not None:
            return name_file(path, self._label, before=not self._label.startswith("-"))
        rank = identity.rank
        # Rank 0 keeps the name, and so does a rank whose number is already in it.
        if rank and not re.search(rf"(?<!\d){rank}(?!\d)", os.path.basename(path)):
            return name_file(path, f"rank{rank}_", before=True)
        return path

    # ---- exit and fork ---------------------------------------------------------------------------

    def _hook(self) -> None:
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._after_fork)
            recorder.on_begin = self._join
        # Registered after the recorder's hook, so that it runs before it.
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        profile = self.profile
        if profile is not None and profile.pid == os.getpid():
            self._guard(lambda: self._finish(profile, EXIT_S))
        self._writer.close()

    def _after_fork(self) -> None:
        self._writer.leave_parent()
        before, self.profile = self.profile, None
        self._label = f"-pid_{os.getpid()}"
        if before is not None and before.is_open and before.folder is not None:
            # Like the child's recording, its file begins with the first event or after a delay.
            self.profile = MxnetProfile(before.settings, self._name_file(), is_child=True)
            self.profile.toggle()
            end_with_multiprocessing(self._at_exit)

    def _join(self) -> None:
        """Make a child's profile part of its recording, which has just begun."""
        with self.lock:
            profile = self.profile
            if profile is not None and profile.folder is None:
                self._adopt(profile)


def _gate(on: bool) -> None:
    """Record the program's events and torch's operators, or leave them out."""
    _core.events_gate(on)
    _core.operators_gate(on)


def _list_sums() -> Sequence[Sequence[Any]]:
    return [*_core.events_summary(), *read_operators()]


def _find_modules(answer: dict[str, Any] | None) -> Sequence[Sequence[Any]]:
    return [make_sum(*numbers) for numbers in (answer or {}).get("modules", ())]


def _find_memory(answer: dict[str, object] | None) -> dict[str, dict[str, float]]:
    found = (answer or {}).get("memory")
    return found if isinstance(found, dict) else {}


state = State()


def autostart(given: dict[str, object]) -> None:
    """Profile this process from start to end, because the environment asks for it."""
    label = None if environ.claim_profiler() else f"-pid_{os.getpid()}"
    # The file is written at the end, as in the original.
    state.configure(
        MxnetSettings({**given, "continuous_dump": False, "aggregate_stats": True}), label
    )
    state.run()
