"""Record a program from its start: a script, -m MODULE, or -- COMMAND."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from sonde import environ, launch, settings
from sonde.cli import _options
from sonde.errors import ConfigError, Error

GROUP = "record"
EXAMPLES = (
    "sonde run train.py --epochs 3",
    "sonde run --job train-7 -- torchrun --nproc-per-node 8 train.py",
    "sonde run --set stack.every=5ms -m mypackage.serve",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sonde run [options] (SCRIPT.py | -m MODULE | -- COMMAND) [arguments]"
    _options.add_settings(parser)
    parser.add_argument(
        "--job",
        metavar="NAME",
        help="a name for all its processes; give the same one on every host of a larger job",
    )
    parser.add_argument(
        "--no-follow-children",
        action="store_true",
        help="record only this process, not the Python processes that it starts",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER,
                        help="run a module, as `python -m` does")  # fmt: skip
    parser.add_argument("program", metavar="PROGRAM", nargs=argparse.REMAINDER,
                        help="a script, or -- and a command, with its arguments")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Become the program: same pid, files, terminal, signals and exit code as without us."""
    argv = _command(args.module, args.program)
    changes = _options.split_settings(args.set)
    settings.read_values(changes)  # a wrong setting is an error here, not a complaint in the job
    env = {environ.variable_of(name): value for name, value in changes.items()}
    if args.no_follow_children:
        env["SONDE_FOLLOW"] = "off"
        env["SONDE_ONLY"] = str(os.getpid())
    path = launch.find_program(argv)
    first = argv[1] if len(argv) > 1 else ""
    # With other options Python may leave our hook out, and nobody would let the signal through.
    has_hook = launch.is_this_python(path) and (first in ("-m", "-c") or not first.startswith("-"))
    env.update(_hold_signal(changes.get("snapshot.signal") if has_hook else ""))
    sys.stdout.flush()
    try:
        os.execve(path, argv, launch.make_job_environment(argv, args.job, **env))
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None


def _hold_signal(given: str | None) -> dict[str, str]:
    """Hold the signal that asks for snapshots back, and no other: until its handler is installed,
    it would end this Python and the next one. Returns the variable that has job/autostart.py let it
    through."""
    name = environ.read_tool_setting(settings.list_keys()["snapshot.signal"], given)
    asking = {getattr(signal, f"SIG{name}")} if name else set[int]()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, asking) - launch.held
    signal.pthread_sigmask(signal.SIG_UNBLOCK, launch.held - asking)
    # What whoever started us holds back is held back from the program as well.
    ours = asking - before
    return {"SONDE_HELD": f"{os.getpid()} {int(*ours)}"} if ours else {}


def _command(module: list[str] | None, program: list[str]) -> list[str]:
    if module:
        return [sys.executable, "-m", *module]
    if not program or program == ["--"]:
        raise ConfigError("nothing to run; give SCRIPT.py, -m MODULE or -- COMMAND")
    if program[0] == "--":
        return program[1:]
    if program[0].endswith((".py", ".pyz", ".pyc")) or os.path.isdir(program[0]):
        return [sys.executable, *program]
    if os.path.isfile(program[0]) and not os.access(program[0], os.X_OK):
        return [sys.executable, *program]
    return program
