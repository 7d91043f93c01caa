"""What `sonde attach` and `sonde detach` run inside the process: see attach.py.

Read as text and run in names of its own by a thread that the program does not know, so it imports
nothing of ours at the top. It prints nothing, raises nothing, and leaves `sys.path` and `__main__`
as they are."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.recorder import Recorder

_HURRY_S = 0.0001


def run(request: dict[str, object]) -> None:
    """Do what was asked and answer; undo it if nobody waits for the answer any more."""
    answer: dict[str, object] = {}
    failure: list[BaseException] = []
    try:
        answer.update(_stop() if request["action"] == "stop" else _start(request))
    except BaseException as error:
        failure.append(error)
    if failure:
        answer["error"] = f"{type(failure[0]).__name__}: {failure[0]}"
    if not _reply(str(request["folder"]), answer) and answer.get("is_new"):
        _stop()
    if failure and isinstance(failure[0], KeyboardInterrupt):
        from _thread import interrupt_main

        interrupt_main()  # it was meant for the program


def _start(request: dict[str, object]) -> dict[str, object]:
    # Each file that is opened gives the GIL away, and a busy program keeps it for as long as this.
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_HURRY_S)
    try:
        recorder = _load(str(request["package"]), bool(request["fits"]))
        recorder.switch_s = before_s  # for a child that is forked meanwhile
        return _begin(recorder, request)
    finally:
        if abs(sys.getswitchinterval() - _HURRY_S) < 1e-6:  # nobody else has changed it
            sys.setswitchinterval(before_s)
        if "sonde.recorder" in sys.modules:
            sys.modules["sonde.recorder"].recorder.switch_s = None


def _begin(recorder: Recorder, request: dict[str, object]) -> dict[str, object]:
    if recorder.session is not None:
        return {"session": recorder.session.folder}
    if time.monotonic_ns() > int(str(request["deadline_ns"])):
        return {"error": "too late"}
    said: list[str] = []
    settings = request["settings"]
    assert isinstance(settings, dict)
    folder = recorder.start(settings, root=str(request["root"]), tell=said.append)
    if folder is None:
        return {"error": "; ".join(said) or "it does not say why"}
    return {"session": folder, "is_new": True}


def _stop() -> dict[str, object]:
    recorder = getattr(sys.modules.get("sonde.recorder"), "recorder", None)
    if recorder is not None:
        recorder.stop()
    return {}


def _load(package: str, fits: bool) -> Recorder:
    """Import sonde: the program's own if it has one, else ours; its recorder."""
    import _imp

    # A fork waits until the import is done: a child with half a module could never import it.
    _imp.acquire_lock()
    try:
        if "sonde" not in sys.modules:
            _bring(package, fits)
        from sonde import plugins
        from sonde.recorder import recorder

        for name in plugins.list_names("sources"):
            plugins.load("sources", name)
        return recorder
    finally:
        _imp.release_lock()


def _bring(package: str, fits: bool) -> None:
    """Put the module `sonde` into place without a change of sys.path."""
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    own = find_spec("sonde")
    if own is not None and own.origin is not None:
        if not os.path.exists(os.path.join(os.path.dirname(own.origin), "recorder.py")):
            raise ImportError(f"it has another module called sonde: {own.origin}")
        return
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


def _reply(folder: str, answer: dict[str, object]) -> bool:
    """Leave the answer where the tool waits; False if it has given up."""
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
