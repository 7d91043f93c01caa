"""The profile of this process: what is recorded for it, when, and which file it becomes.

A profile begins with the first `run` and ends with dump(True), with another configuration or with
the program. Between, windows of time are open or not; what lies in them goes into its file."""

from __future__ import annotations

import atexit
import os
import re
from array import array
from collections.abc import Callable, Sequence

from sonde import _core, environ
from sonde.errors import NotRun
from sonde.job.fork import end_with_multiprocessing
from sonde.job.mxnet.memory import write_memory
from sonde.job.mxnet.settings import NOWHERE, MxnetSettings
from sonde.job.mxnet.writer_line import WriterLine
from sonde.job.recorder import recorder
from sonde.job.source_context import SourceContext, say
from sonde.session.profiler_line import join, name_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import RLock

DUMP_S, EXIT_S, MEMORY_S = 60.0, 20.0, 2.0
_MOST_WINDOWS = 1000  # a program may pause in each of its steps, for days


class MxnetProfile:
    """One profile: its file, and the windows of time that go into it."""

    def __init__(self, settings: MxnetSettings, path: str, *, is_child: bool = False) -> None:
        self.settings, self.path, self.is_child = settings, path, is_child
        self.pid = os.getpid()
        self.windows = array("q")  # begin, end, begin, …: the last is open if they are uneven
        self.folder: str | None = None  # of the recording

    @property
    def is_open(self) -> bool:
        """Whether what happens now goes into the file."""
        return len(self.windows) % 2 == 1

    def turn(self) -> int:
        """Open or close a window; when that was."""
        t_ns = _core.clock_ns()
        self.windows.append(t_ns)
        if len(self.windows) > 2 * _MOST_WINDOWS:
            self.windows = array("q", join(self.windows, _MOST_WINDOWS // 2))
        return t_ns

    def describe(self) -> dict[str, object]:
        """Return what the process that writes must know."""
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
    """What the calls of `sonde.profiler` change."""

    def __init__(self) -> None:
        self.settings = MxnetSettings({})
        self.profile: MxnetProfile | None = None
        self.has_run = self._hooked = False
        self.last_path: str | None = None  # of the last profile that ended
        self._sums: Sequence[Sequence[object]] = []  # of that one
        self._memory: dict[str, dict[str, float]] = {}  # the same
        self._mark: str | None = None  # put before or into the file's name; see _name_file
        self._reset_ns = 0
        self._scribe = WriterLine()

    @property
    def lock(self) -> RLock:
        """The recorder's: each calls the other, and two locks would be taken in two orders."""
        return recorder.lock

    # ---- what is asked ---------------------------------------------------------------------------

    def configure(self, settings: MxnetSettings, mark: str | None = None) -> None:
        """Another configuration. With another file the profile under way ends; if time was passing
        for it, that goes on for the new one."""
        settings.check_path()
        with self.lock:
            before, self.settings, self._mark = self.profile, settings, mark
            if before is None:
                _core.events_gate(False)
            elif self._name_file() == before.path:
                before.settings = settings
                if before.folder is not None:
                    self._tell_all(before)
            else:
                was_open = before.is_open
                self._guard(lambda: self._finish(before, 0))
                if was_open:
                    self.run()

    def run(self) -> None:
        """Add what happens from now on to the profile; begin one if there is none."""
        self._guard(self._run)

    def halt(self) -> None:
        """Stop adding to the profile; what there is stays."""
        with self.lock:
            _core.events_gate(False)
            profile = self.profile
            if profile is not None and profile.is_open:
                self._turn(profile)

    def resume(self) -> None:
        """Go on after `halt`; do nothing if there is no profile."""
        with self.lock:
            if self.profile is not None:
                self.run()

    def dump(self, finished: bool, timeout_s: float = DUMP_S) -> None:
        """Write the file and wait for it, if there is a timeout; does the profile end with it?"""
        with self.lock:
            profile = self.profile
            if profile is None and not self.has_run:
                raise NotRun("the profiler has not run; call set_config() and set_state('run')")
        if profile is None:
            return  # its file is written
        work = self._finish if finished else self._write
        self._guard(lambda: work(profile, timeout_s))

    def read_sums(self) -> Sequence[Sequence[object]]:
        """Return the sums of all events of the profile, or of the last one."""
        with self.lock:
            return self._sums if self.profile is None else _core.events_summary()

    def read_memory(self) -> dict[str, dict[str, float]]:
        """Return the memory statistics by device, as far as they were read."""
        with self.lock:
            profile = self.profile
            if profile is None:
                return self._memory
        if "memory" not in profile.settings.parts:
            return {}
        return _find_memory(self._scribe.ask(MEMORY_S, do="memory", since_ns=self._reset_ns))

    def reset_sums(self) -> None:
        """Reset all sums."""
        with self.lock:
            _core.events_reset()
            self._sums, self._memory, self._reset_ns = [], {}, _core.clock_ns()

    # ---- how it is done --------------------------------------------------------------------------

    def _guard(self, work: Callable[[], object]) -> None:
        """Do it, such that nothing of ours that breaks reaches the program. Not with signals held
        back: a dump takes a while, and Ctrl-C must end it."""
        SourceContext(recorder, "profiler").guard(work)()

    def _run(self) -> None:
        with self.lock:
            # Even if nothing can be recorded: then a dump has nothing to do, and must not raise.
            self.has_run = True
            self._hook()
            if self.profile is None:
                self._begin()
            if self.profile is not None and not self.profile.is_open:
                self._turn(self.profile)
            _core.events_gate(True)

    def _begin(self) -> None:
        profile = MxnetProfile(self.settings, self._name_file())
        if recorder.session is None or recorder.parked:
            # What could not be begun has said so on stderr; the program runs on.
            recorder.start(profile.settings.make_recording())
            recorder.lent = recorder.session is not None
        if recorder.session is None:
            return
        self._adopt(profile)
        self.reset_sums()
        self.profile = profile

    def _adopt(self, profile: MxnetProfile) -> None:
        """Make the profile part of the recording that is under way."""
        assert recorder.session is not None
        profile.folder = recorder.session.folder
        if not self._tell_all(profile):
            recorder.note("profiler", "failed", "the process that writes traces cannot be started")

    def _turn(self, profile: MxnetProfile) -> None:
        """Open or close a window."""
        self._tell({"do": "turn", "t_ns": profile.turn()})

    def _tell(self, request: dict[str, object]) -> None:
        self._scribe.send(**request)

    def _finish(self, profile: MxnetProfile, timeout_s: float) -> None:
        """Write the last file of a profile, and wait for it if there is a timeout."""
        with self.lock:
            if self.profile is not profile:
                return  # another thread was first
            self.halt()
            self._sums = _core.events_summary()
            self.profile, self.last_path = None, profile.path
        try:
            self._write(profile, timeout_s, finished=True)
        finally:
            with self.lock:
                if self.profile is None and recorder.lent:
                    recorder.stop()

    def _write(self, profile: MxnetProfile, timeout_s: float, *, finished: bool = False) -> None:
        if profile.folder is None:
            return  # a child that has recorded nothing
        self._revive(profile)
        request: dict[str, object] = {"do": "dump", "finished": finished}
        if finished and profile.settings.aggregates and "memory" in profile.settings.parts:
            request["since_ns"] = self._reset_ns
        if timeout_s == 0:
            self._tell(request)
            if not self._scribe.is_there and self._tell_all(profile):
                self._tell(request)
        else:
            self._wait(profile, request, timeout_s)
        write_memory(profile.settings.memory_prefix, profile.settings.parts)

    def _wait(self, profile: MxnetProfile, request: dict[str, object], timeout_s: float) -> None:
        """Ask for the file; print one line if there is none."""
        answer = self._scribe.ask(timeout_s, **request)
        if answer is None and not self._scribe.is_there:
            # It was killed before, and nobody had noticed.
            self._revive(profile)
            answer = self._scribe.ask(timeout_s, **request)
        if "since_ns" in request:
            self._memory = _find_memory(answer)
        if answer is None and self._scribe.is_there:
            say(f"{profile.path} is not written after {timeout_s:g} s; it will be when it can")
        elif answer is None:
            say(f"{profile.path} is not written: the process that writes it has ended")
        elif answer.get("error"):
            say(f"{profile.path} is not written: {answer['error']}")

    def _revive(self, profile: MxnetProfile) -> None:
        """Start another process that writes if the last one is gone."""
        if not self._scribe.is_there:
            self._tell_all(profile)

    def _tell_all(self, profile: MxnetProfile) -> bool:
        """Have the process that writes know the profile; False if there can be none. It may have
        left since we last heard of it: it does a minute after a profile."""
        assert profile.folder is not None
        for _ in range(2):
            if not self._scribe.start(os.path.dirname(profile.folder)):
                return False
            self._tell(profile.describe())
            if self._scribe.is_there:
                return True
        return False

    def _name_file(self) -> str:
        """Where the profile of this very process goes: no two of one job share a file."""
        path, identity = self.settings.path, environ.read_identity()
        if path == NOWHERE:
            return path
        if self._mark is not None:
            return name_file(path, self._mark, before=not self._mark.startswith("-"))
        rank = identity.rank
        # Rank 0 keeps the name; so does a file that is named after its rank.
        if rank and not re.search(rf"(?<!\d){rank}(?!\d)", os.path.basename(path)):
            return name_file(path, f"rank{rank}_", before=True)
        return path

    # ---- exit and fork ---------------------------------------------------------------------------

    def _hook(self) -> None:
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._after_fork)
            recorder.on_begin = self._join
        # Behind the recorder's own, which is to come after it.
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        profile = self.profile
        if profile is not None and profile.pid == os.getpid():
            self._guard(lambda: self._finish(profile, EXIT_S))
        self._scribe.close()

    def _after_fork(self) -> None:
        self._scribe.leave_parent()
        before, self.profile = self.profile, None
        self._mark = f"-pid_{os.getpid()}"
        if before is not None and before.is_open and before.folder is not None:
            # Like its recording, its file begins with its first event, or in a moment.
            self.profile = MxnetProfile(before.settings, self._name_file(), is_child=True)
            self.profile.turn()
            end_with_multiprocessing(self, State._at_exit)

    def _join(self) -> None:
        """Make a child's profile part of the recording that has just begun."""
        with self.lock:
            profile = self.profile
            if profile is not None and profile.folder is None:
                self._adopt(profile)


def _find_memory(answer: dict[str, object] | None) -> dict[str, dict[str, float]]:
    found = (answer or {}).get("memory")
    return found if isinstance(found, dict) else {}


state = State()


def autostart(given: dict[str, object]) -> None:
    """Profile this process from its first moment to its end: the environment asks for it."""
    mark = None if environ.claim_profiler() else f"-pid_{os.getpid()}"
    # The file is written at the end, as the original does it.
    state.configure(
        MxnetSettings({**given, "continuous_dump": False, "aggregate_stats": True}), mark
    )
    state.run()
