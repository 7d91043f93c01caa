"""`sonde` and `python -m sonde`."""

import sys


def main() -> int:
    """Run one command."""
    held = _hold_signals() if sys.argv[1:2] == ["run"] else set()
    from sonde import cli, launch
    from sonde.background import import_as_written, leave_out_numpy, leave_out_pandas

    import_as_written()
    leave_out_pandas()
    if not any(word.startswith("--engine") for word in sys.argv):  # Spark's and Daft's need it
        leave_out_numpy()
    launch.held = held
    code = cli.main()
    if "pyarrow._flight" in sys.modules:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End without taking the interpreter apart. Threads that wait for a host which hangs are still
    inside gRPC then, and a server that could not start holds on to itself: DuckDB would list all
    that is left on stderr."""
    import atexit
    import os

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _hold_signals() -> set[int]:
    """Hold signals back that may ask for a snapshot: one would end this Python before it has become
    the program. Done before anything is imported, which takes longer than the start of Python."""
    import _signal  # type: ignore[import-not-found]  # the enums of `signal` are slow to create

    asking = {_signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGHUP}
    before: set[int] = _signal.pthread_sigmask(_signal.SIG_BLOCK, asking)
    return asking - before


if __name__ == "__main__":
    sys.exit(main())
