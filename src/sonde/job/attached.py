"""The code that `sonde attach` and `sonde stop` run inside the process: see attach/visit.py.

This file is read as text and run in a namespace of its own, by a thread that the program does not
know about, so it imports nothing of ours at the top. It prints nothing, raises nothing, and leaves
`sys.path` and `__main__` unchanged."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.job.recorder import Recorder

_HURRY_S = 0.0001
_FORK_S = 1.0


class AttachRequest:
    """A request from the tool: `start` or `stop`, with its parameters."""

    __slots__ = ("action", "deadline_ns", "fits", "folder", "package", "python", "root",
                 "settings")  # fmt: skip

    def __init__(
        self,
        *,
        action: str,
        folder: str,
        root: str,
        package: str,
        fits: bool,
        deadline_ns: int,
        python: str,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.action, self.folder, self.root, self.package = action, folder, root, package
        self.fits, self.deadline_ns, self.settings = fits, deadline_ns, settings or {}
        self.python = python


class Gate:
    """Makes the program's forks wait while our thread runs.

    A child forked meanwhile would hold a half-imported module of ours, and Python would warn about
    a fork with threads because of our thread. There is one gate per process, because a fork hook
    cannot be removed."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        os.register_at_fork(before=self._wait, after_in_child=self.open)

    def close(self) -> None:
        self._lock.acquire(False)

    def open(self) -> None:
        if self._lock.locked():
            self._lock.release()

    def _wait(self) -> None:
        if not self._lock.locked():
            return
        # The wait is bounded: the program may fork inside an import that we are waiting for.
        if self._lock.acquire(timeout=_FORK_S):
            self._lock.release()
        if _find_recorder() is not None:
            # Its own fork hook ran before this one, when nothing was recorded yet.
            from sonde import _core

            _core.fork_rest()


def _find_recorder() -> Recorder | None:
    return getattr(sys.modules.get("sonde.job.recorder"), "recorder", None)


def run(request: AttachRequest) -> None:
    """Handle the request and reply; undo a start if nobody is waiting for the reply any more."""
    gate = getattr(_find_recorder(), "gate", None) or Gate()
    gate.close()
    try:
        _run(request)
    finally:
        recorder = _find_recorder()
        if recorder is not None:
            recorder.gate = gate
        gate.open()


def _run(request: AttachRequest) -> None:
    answer: dict[str, object] = {}
    failure: list[BaseException] = []
    try:
        import json  # noqa: F401  # for the answer: once we record, it would be seen

        answer.update(_stop() if request.action == "stop" else _start(request))
    except BaseException as error:
        failure.append(error)
    if failure:
        answer["error"] = f"{type(failure[0]).__name__}: {failure[0]}"
    if not _reply(request.folder, answer) and answer.get("is_new"):
        _stop()
    if failure and isinstance(failure[0], KeyboardInterrupt):
        from _thread import interrupt_main

        interrupt_main()  # the interrupt was meant for the program


def _start(request: AttachRequest) -> dict[str, object]:
    # Every file we open releases the GIL, and a busy program then keeps it for a switch interval.
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_HURRY_S)
    try:
        return _begin(_load(request), request)
    finally:
        if abs(sys.getswitchinterval() - _HURRY_S) < 1e-6:  # unless somebody else changed it
            sys.setswitchinterval(before_s)


def _begin(recorder: Recorder, request: AttachRequest) -> dict[str, object]:
    if recorder.session is not None:
        recorder.ends_with_profile = False  # the user has now asked for the recording itself
        return {"session": recorder.session.folder}
    if time.monotonic_ns() > request.deadline_ns:
        return {"error": "the request came too late"}
    problems: list[str] = []
    folder = recorder.start(request.settings, root=request.root, report=problems.append)
    if folder is None:
        return {"error": "; ".join(problems) or "recording did not start, for an unknown reason"}
    return {"session": folder, "is_new": True}


def _stop() -> dict[str, object]:
    recorder = _find_recorder()
    if recorder is not None:
        recorder.stop()
    return {}


def _load(request: AttachRequest) -> Recorder:
    """Import sonde, the program's own copy if it has one, and return its recorder."""
    is_lent = "sonde" not in sys.modules and _import_package(request.package, request.fits)
    from sonde.job.recorder import recorder

    if is_lent:
        from sonde import launch

        launch.lender = request.python  # what a collector needs is installed there, if anywhere
    return recorder


def _import_package(package: str, fits: bool) -> bool:
    """Import the package `sonde` from this folder without changing sys.path; return False if the
    program has one of its own."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    own = find_spec("sonde")
    if own is not None and own.origin is not None:
        if not os.path.exists(os.path.join(os.path.dirname(own.origin), "job", "recorder.py")):
            raise ImportError(f"the program has another module called sonde: {own.origin}")
        return False
    if not fits or not any(
        os.path.exists(os.path.join(package, "_core" + suffix)) for suffix in EXTENSION_SUFFIXES
    ):
        raise ImportError(f"{package} is not built for this Python ({EXTENSION_SUFFIXES[0]})")
    init = os.path.join(package, "__init__.py")
    spec = spec_from_file_location("sonde", init, submodule_search_locations=[package])
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["sonde"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == "sonde"]:
            del sys.modules[name]
        raise
    return True


def _reply(folder: str, answer: dict[str, object]) -> bool:
    """Write the answer where the tool waits for it; return False if the tool has given up."""
    import json

    path = os.path.join(folder, "answer.json")
    try:
        fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.rename(path + ".tmp", path)
    except OSError:
        return False
    return True
