"""The recording of this process: at most one at a time. It lives in somebody's training job."""

from __future__ import annotations

import atexit
import os

from sonde import _core, environ, plugins, settings
from sonde.errors import Error
from sonde.job import exit_status
from sonde.job import native_state as native
from sonde.job.deferred_source import DeferredSource
from sonde.job.fork import DELAY_NS, ForkLock, watch_forks
from sonde.job.notice import print_complaints, print_notice
from sonde.job.source_context import SourceContext
from sonde.job.table_writers import Row, TableWriters
from sonde.job.uncaught import find_last_exception
from sonde.session import files
from sonde.session.writer import SessionWriter, set_current
from sonde.tables.recording import SourceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sonde.job.source_context import Source


class Recorder:
    """Starts, steers and ends the recording of this process."""

    def __init__(self) -> None:
        self.lock = ForkLock(self._leave_parent)
        self._session: SessionWriter | None = None
        self._tables = TableWriters(self._make_opener)
        self._sources: dict[str, tuple[Source, SourceContext]] = {}
        self._native_thread: _core.NativeThread | None = None
        self._emit_source: _core.Writer | None = None
        self._environment: list[str] = []  # variables that we have set
        self.parked = False  # recording exists only for runs, and is paused between them
        self._has_failed = False  # the last attempt to record for a run failed
        self.ends_with_profile = False  # recording exists only for a profile of mxnet/state.py
        self.on_begin: Callable[[], object] | None = None  # see mxnet/state.py
        self._watches_forks = False
        self.since_ns = 0  # while the session of a child begins: the time when the child began
        self._forked_from: SessionWriter | None = None  # in a child that has no session yet
        self._busy = False
        self._postponed: Callable[[], object] | None = None
        self._report: Callable[[str], object] = print_notice  # receives why a start failed
        self.gate: object = None  # the fork hook of attached.py

    @property
    def session(self) -> SessionWriter | None:
        """The session of this process."""
        if self.lock.is_inherited():
            with self.lock:
                pass
        return self._session

    # ---- start and stop --------------------------------------------------------------------

    def start(
        self,
        given: Mapping[str, object],
        parent: str | None = None,
        root: str | None = None,
        report: Callable[[str], object] | None = None,
    ) -> str | None:
        """Begin recording, and return the session's folder. If that fails, return None, and write
        one line that says why to stderr, or pass it to `report`. `root` is the folder of sessions,
        if it is not the one that the environment names."""
        values, complaints = _core.undisturbed(lambda: environ.load_settings(given))
        print_complaints(complaints, parent or self._session or root)
        if not self._watches_forks:
            self._watches_forks = True  # first, because another thread may fork meanwhile
            watch_forks(_core.child_end(self._at_exit))
        with self.lock:
            self.ends_with_profile = False
            if self.parked:
                self.stop()  # the recording was only for runs; now it is wanted with these settings
            self._report = report or print_notice
            self._do(lambda: self._begin(values, parent, root))
            self._report = print_notice
            if self.session is None:
                return None
            for complaint in complaints:
                self.session.log(complaint)
            return self.session.folder

    def park(self) -> bool:
        """Record only for runs, paused between them, unless a recording is live; return whether."""
        with self.lock:
            self.leave_if_filtered()
            # The program's children are not recorded then: nobody asked for that.
            if self.session is None:
                self.parked = self.start({"follow": False}, report=self._report_once) is not None
                self._has_failed = not self.parked
            return self.session is not None

    def _report_once(self, line: str) -> None:
        """Print why runs cannot be recorded, once and not at every call that was to be profiled."""
        if not self._has_failed:
            print_notice(line)

    def stop(self, state: int = _core.STOPPED) -> None:
        """End recording; what was recorded is kept."""
        with self.lock:
            self._do(lambda: self._end(state))

    def _do(self, work: Callable[[], object]) -> None:
        """Do `work` with signals held back: the program's handlers run before or after it. Inside
        it, an exception of theirs (a TimeoutError is an OSError) would be taken for ours."""
        _core.undisturbed(lambda: self._do_one_at_a_time(work))

    def _do_one_at_a_time(self, work: Callable[[], object]) -> None:
        """Do `work`, or postpone it if it is requested from inside other such work: code of the
        program may run while we are busy, and call us."""
        if self._busy:
            self._postponed = work
            return
        self._busy = True
        try:
            SourceContext(self, "recorder").guard(work)()
        finally:
            self._busy = False
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            self._do_one_at_a_time(postponed)

    def _begin(self, values: settings.Values, parent: str | None, root: str | None) -> None:
        if self.session is not None:
            return
        forked, self._forked_from = self._forked_from, None
        if why := native.find_danger(values):
            self._report(f"not recording: {why}")
            return
        root = root or (environ.find_root() if forked is None else forked.root)
        if values["follow"]:
            self._environment += environ.begin_job()
        try:
            self._session = writing = SessionWriter(root, values, parent)
        except Error as error:
            self._report(f"not recording: {error}")
            self._forget_session()
            self._unfollow()
            _core.filter_unwatch()
            return
        set_current(writing)
        exit_status.watch(writing.page)
        atexit.unregister(self._at_exit)  # it may be inherited from a parent
        atexit.register(self._at_exit)
        try:
            self._set_up(writing)
        except BaseException:
            self._end(_core.STOPPED)
            raise

    def _set_up(self, writing: SessionWriter) -> None:
        self._tables.prepare(writing)
        self._emit_source = self.open_table(SourceLog, "sonde.source_log")
        # Rows are accepted from here on, so that a source may write while it starts.
        _core.control_on(writing.page, True)
        for name in plugins.list_names("job.sources"):
            if writing.values[f"source.{name}"]:
                self._start_source(name)
        self._start_native_thread(writing)
        if writing.values["follow"]:
            self._environment += environ.follow_children(writing.root, writing.values)
            _core.follow_forks(self.begin_in_child, DELAY_NS)
        _core.control_state(writing.page, _core.RUNNING)
        if self.on_begin is not None:
            SourceContext(self, "profiler").guard(self.on_begin)()

    def _end(self, state: int) -> None:
        self.leave_if_filtered()
        writing, self._session = self.session, None
        self._forked_from, self.parked, self.ends_with_profile = None, False, False
        _core.later_cancel()
        _core.follow_forks(None, 0)
        if writing is None or writing.pid != os.getpid():
            return  # no session, or a parent's: C code may fork without calling Python's hooks
        for name in list(self._sources):
            self._stop_source(name)
        if self._native_thread is not None:
            self._native_thread.stop()
        self._forget_session()
        writing.close(state)
        _core.signal_release(state == _core.EXITED)  # after the native thread, which renews it
        self._unfollow()
        if state != _core.EXITED:  # otherwise this is the exit hook itself
            atexit.unregister(self._at_exit)
            exit_status.forget()
            _core.filter_unwatch()

    def _unfollow(self) -> None:
        environ.unfollow_children(self._environment)
        self._environment = []

    def leave_if_filtered(self) -> bool:
        """Leave the recording as it is if a filter of system calls would end the program at our
        next one; return whether. Rows in memory need none: anything else begins with this."""
        writing = self.session
        if writing is None or not (why := native.find_danger(writing.values)):
            return False
        if self._native_thread is not None:
            self._native_thread.stop()
        if self._emit_source is not None:
            self._emit_source(_core.clock_ns(), "recorder", "failed", why)
        _core.control_on(writing.page, False)
        self._sources = {}
        self._forget_session()
        return True

    def _forget_session(self) -> None:
        """Forget the session; the writers of its tables stay, and drop their rows."""
        set_current(None)
        self._session = self._native_thread = self._emit_source = None
        self._tables.detach(soon=self._forked_from is not None)

    def set_on(self, on: bool) -> None:
        """Resume or pause: accept rows or drop them; sources stay in place."""
        with self.lock:
            if self.session is not None and self.session.pid == os.getpid():
                _core.control_on(self.session.page, on)

    # ---- tables ------------------------------------------------------------------------------

    def open_table(self, row: Row, table: str) -> _core.Writer:
        """Return the writer of a table: always the same one, across stop, start and fork."""
        with self.lock:
            self.leave_if_filtered()
            soon = self._forked_from is not None
            return self._tables.open(row, table, self.session, soon=soon)

    def _make_opener(self, table: str) -> Callable[[], object]:
        open_late = SourceContext(self, table).guard(lambda: self._open_late(table))
        return lambda: _core.undisturbed(open_late)

    def _open_late(self, table: str) -> None:
        """Create the ring of a table at its first row, and in a new child the session as well."""
        with self.lock:
            self.begin_in_child()
            self.leave_if_filtered()
            if self.session is not None:
                self._tables.attach(table, self.session)

    # ---- sources -------------------------------------------------------------------------------

    def note(self, source: str, state: str, detail: str | None = None) -> None:
        """Record the new state of a source: a row in sonde.source_log, and a line in the log."""
        if self._emit_source is not None:
            self._emit_source(_core.clock_ns(), source, state, detail)
        if self.session is not None and state != "on":
            self.session.log(f"{source} is {state}: {detail or 'as requested'}")
        elif state == "failed" and source == "recorder":
            self._report(f"not recording: {detail}")

    def _start_source(self, name: str, why: str = "") -> None:
        context = SourceContext(self, name)
        context.why = why
        context.guard(self._make_source)(name, context)
        if name in self._sources:
            self.note(name, "on", context.detail)

    def _make_source(self, name: str, context: SourceContext) -> None:
        needs = plugins.read_needs("job.sources", name)
        source: Source = (
            DeferredSource(context, name, needs)
            if needs
            else plugins.load("job.sources", name).Source(context)
        )
        source.start()
        self._sources[name] = (source, context)

    def _stop_source(self, name: str) -> None:
        source, context = self._sources.pop(name)
        # A source that failed is stopped all the same.
        had_failed, context.failed = context.failed, False
        context.guard(source.stop)()
        if not (context.failed or had_failed):  # else the reason of the failure stays on record
            self.note(name, "off", f"it was on {context.why}" if context.why else None)

    def has_source(self, name: str) -> bool:
        """Return whether the source is on."""
        return name in self._sources

    def publish(self) -> None:
        """Have every source that holds numbers back write them now; the GIL must be held."""
        for source, context in list(self._sources.values()):
            if hasattr(source, "publish"):
                context.guard(source.publish)()

    # ---- control -------------------------------------------------------------------------------

    def _start_native_thread(self, writing: SessionWriter) -> None:
        try:
            self._native_thread = native.start_thread(writing, self._on_bell)
            native.catch_signal(writing)
        except OSError as error:
            self.note("native thread", "unavailable", f"no live control: {error}")

    def _on_bell(self, start: int | None, signal: int | None) -> None:
        # A new guard each time, because one failure must not end all control.
        obey = SourceContext(self, "control").guard(self._obey)
        _core.undisturbed(lambda: obey(start, signal))

    def _obey(self, start: int | None, signal: int | None) -> None:
        """Do what the control page asks, and record what the native thread has noticed."""
        with self.lock:
            writing = self.session
            if writing is None or self.leave_if_filtered():
                return
            for note in native.describe(start, signal, writing):
                self.note(*note)
            page = _core.control_get(writing.page)
            if page["stop"]:
                self.stop()
                return
            values = self._match_sources(writing)
            known = {name: value for name, value in values.items() if name in writing.values}
            writing.values.update(known)  # type: ignore[arg-type]  # checked when they were stored
            for source, context in self._sources.values():
                if hasattr(source, "configure"):
                    context.guard(source.configure)()
            _core.control_obeyed(writing.page, page["asked"])

    def _match_sources(self, writing: SessionWriter) -> dict[str, object]:
        """Switch sources on and off to match the settings and the current run."""
        values = files.read_checked(os.path.join(writing.folder, files.CONFIG))
        extra = writing.read_extra_sources()
        for name in plugins.list_names("job.sources"):
            wanted = bool(values.get(f"source.{name}", True)) or name in extra
            if wanted and name not in self._sources:
                self._start_source(name, extra.get(name, ""))
            elif not wanted and name in self._sources:
                self._stop_source(name)
        return values

    def match_sources(self) -> None:
        """Switch sources on and off right now, for a run that this thread begins or ends."""
        with self.lock:
            if (writing := self.session) is not None:
                match = SourceContext(self, "control").guard(self._match_sources)
                _core.undisturbed(lambda: match(writing))

    # ---- exit and fork ---------------------------------------------------------------------------

    def _at_exit(self) -> None:
        _core.later_finish()
        SourceContext(self, "recorder").guard(self._finish)()

    def _finish(self) -> None:
        has_failed = find_last_exception() is not None
        is_worth_it = has_failed or self.lock.is_wanted()
        if self.lock.is_inherited() and not is_worth_it:
            return  # a short-lived child, which was never recorded: leaving the parent's takes long
        self.leave_if_filtered()
        if is_new := is_worth_it and self.session is None:
            self.begin_in_child()  # a child that fails at once is worth a session
        self.end_with_program(is_new and has_failed)

    def end_with_program(self, is_new: bool) -> None:
        """End recording at the end of the program; `is_new`: it began only now, as that failed."""
        for source, context in list(self._sources.values()):
            if hasattr(source, "at_exit"):
                context.guard(source.at_exit)(is_new)
        self.stop(_core.EXITED)

    def _leave_parent(self) -> None:
        """In a child, when it is first needed: leave the parent's session alone. A session of the
        child's own begins with its first row or after a delay; most children never need one."""
        self._busy, self._postponed = False, None
        _core.undisturbed(SourceContext(self, "recorder").guard(self._leave))

    def _leave(self) -> None:
        parent = self._session or self._forked_from
        if parent is None:
            return
        # Where Python did not know of the fork, nothing else is known of the child either.
        is_followed = parent.values["follow"] and _core.forked_ns()
        self._forked_from = parent if is_followed else None
        sources, self._sources = self._sources, {}
        self._forget_session()
        for source, _context in sources.values():
            (getattr(source, "leave", source.stop) if is_followed else source.stop)()
        self._tables.prepare(None, soon=bool(is_followed))

    def begin_in_child(self) -> None:
        """In a forked child that is to be recorded: begin, unless it has begun."""
        with self.lock:
            parent = self._forked_from
            if parent is not None and native.find_danger(parent.values):
                self._forked_from = None
            elif parent is not None:
                self.since_ns = _core.forked_ns()
                self.start(parent.values, parent.id)
                self.since_ns = 0


recorder = Recorder()
