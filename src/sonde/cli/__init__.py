"""The command line: one file per command in this folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sonde import __version__, plugins
from sonde.errors import Error

_EPILOG = """\
TARGET is a pid, a session folder or id, a run, a job (all its ranks), `all`, or several with
commas.
Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 3 no such recording, 4 damaged or newer
recording, 5 SQL error, 6 the process did not answer, 7 another run is under way,
8 advice found something as bad as --fail-on, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors are one line on stderr."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    _open_closed()
    code = _try(arguments)
    engine = sys.modules.get("sonde.store.engine")
    if engine is not None and engine.abandoned:
        # A query that would not stop runs on in a thread; waiting for it would hang here.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _open_closed() -> None:
    """Where stdout or stderr is closed, what we say goes nowhere; it is no reason to fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  kept open


def _try(arguments: list[str]) -> int:
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except Error as error:
        print(f"sonde: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough; the interpreter's own flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    names = plugins.list_names("cli")
    parser = argparse.ArgumentParser(
        prog="sonde",
        description="An always-on profiler and flight recorder for Python and AI jobs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sonde {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name in names:
        text = plugins.read_help("cli", name)
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:  # only this one is imported
            plugins.load("cli", name).add_arguments(command)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    # A command of the user's own, behind --, is nothing for our parser.
    has_command = chosen in ("profile", "monitor") and "--" in arguments
    at = arguments.index("--") if has_command else len(arguments)
    parsed = parser.parse_args(arguments[:at])
    parsed.rest = arguments[at + 1 :]
    result = plugins.load("cli", parsed.command).run(parsed)
    assert isinstance(result, int)
    return result
