"""Run one of our modules as a process of its own: `python background.py REPORT MODULE WORDS`.

This file is run by its path, and decides where modules come from. The standard library is first:
the folder that sonde is in may hold modules of the same names (old backports, say), which the job
never sees because they come last there. Sonde itself is the one beside this file, whatever else is
installed. If anything fails, REPORT gets one line that says why: nobody sees our stderr."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `main()` of the module; write why it failed."""
    report, module = sys.argv[1:3]
    del sys.argv[1:3]
    package = os.path.dirname(os.path.abspath(__file__))
    try:
        die_first()
        order_path(package)
        load_package(package)
        import_as_written()
        leave_out_pandas()
        leave_out_numpy()
        from importlib import import_module

        import_module(f"sonde.{module}").main()
    except Exception as error:
        write_report(report, error)
        raise


def die_first() -> None:
    """Have the kernel kill this process before any other when memory runs out: it may share the
    job's limit, and another one can take its place."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # a sandbox without it


def order_path(package: str) -> None:
    """Put the standard library first, even before PYTHONPATH; then what is installed; then the
    folder that sonde is in, since the packages that it needs may be there alone."""
    library = os.path.dirname(os.__file__)
    first = [library, os.path.join(library, "lib-dynload")]
    rest = [path for path in sys.path if path not in ("", package, *first)]
    sys.path[:] = [*first, *rest, os.path.dirname(package)]


def load_package(package: str) -> None:
    """Import sonde from this folder."""
    from importlib import util

    place = os.path.join(package, "__init__.py")
    spec = util.spec_from_file_location("sonde", place, submodule_search_locations=[package])
    assert spec is not None and spec.loader is not None
    sys.modules["sonde"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["sonde"])


def import_as_written() -> None:
    """Have this process import nothing later than its code says, whatever the environment asks for
    (Python 3.15): Arrow fails where all imports are lazy."""
    if hasattr(sys, "set_lazy_imports"):
        sys.set_lazy_imports("normal")


class _NoPandas:
    """A finder that says of pandas that it is not installed."""

    LEAVES_OUT = "pandas"  # whoever needs it after all knows us by this: store/engines

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("sonde does without pandas", name=name)


def leave_out_pandas() -> None:
    """Have this process do without pandas: Arrow imports it wherever it is installed, which takes
    longer than most of our commands, and nothing of ours uses it."""
    sys.meta_path.insert(0, _NoPandas)


class _NoNumpy:
    """A finder that says to Arrow that numpy is not installed, if Arrow can do without it."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "numpy" and _is_asked_by("pyarrow") and _can_do_without(sys.modules["pyarrow"]):
            raise ModuleNotFoundError("sonde does without numpy", name=name)


def _is_asked_by(package: str) -> bool:
    """Tell whether the import under way is that package's own. Modules in C have no frame: the one
    that imports them is of the same package."""
    frame = sys._getframe(1)
    while frame is not None:
        asking = str(frame.f_globals.get("__name__", ""))
        if asking != __name__ and not asking.startswith(("importlib", "_frozen_importlib")):
            return asking.partition(".")[0] == package
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _can_do_without(arrow: object) -> bool:
    first = str(getattr(arrow, "__version__", None)).partition(".")[0]
    return first.isdigit() and int(first) >= 18


def leave_out_numpy() -> None:
    """Have Arrow do without numpy in this process: it imports it wherever it is installed, which
    takes a quarter of the time of all our imports and 10 MB, and nothing of ours uses it. Whoever
    else imports numpy gets it."""
    sys.meta_path.insert(0, _NoNumpy)


def write_report(path: str, error: Exception) -> None:
    """Write what went wrong, and in which file."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    file = "" if at is None else f" ({at.tb_frame.f_code.co_filename}, line {at.tb_lineno})"
    line = " ".join(f"{type(error).__name__}: {error}{file}".split())
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        os.write(fd, f"{line}\n".encode("utf-8", "backslashreplace"))
        os.close(fd)


if __name__ == "__main__":
    main()
