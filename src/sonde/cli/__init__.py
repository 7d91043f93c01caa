"""The command line: one file per command in this folder.

A command has a first docstring line (its help), GROUP, EXAMPLES, `add_arguments(parser)` and
`run(args)`, which returns the exit code. A folder `NAME_commands` holds the sub-commands of NAME,
made alike. Names, help and groups are read without importing; only the command that is called is
imported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from sonde import __version__, plugins
from sonde.cli import _terminal
from sonde.cli._options import Formatter, Parser, add_note
from sonde.errors import ConfigError, Error, explain_missing

_HERE = os.path.dirname(os.path.abspath(__file__))
GROUPS = {
    "learn": "Start here",
    "record": "Record a program",
    "watch": "See what it does now",
    "profile": "Profile it for a while",
    "ask": "Ask a recording",
    "export": "Hand on to other tools",
}
_EXIT_CODES = """\
Exit codes:
  0    done
  1    failed
  2    wrong usage, or a setting with an unknown name or value
  3    no such recording or process
  4    the recording is damaged, or written by a newer sonde
  5    the SQL is wrong, or ran too long
  6    the process did not answer in time
  7    another profiling run is under way
  8    advise or compare found something as bad as --fail-on says
  9    hosts of a cluster did not answer; what is shown is of the others
  130  interrupted
`sonde run`, `profile -- COMMAND` and `monitor -- COMMAND` return the code of the program.

`sonde COMMAND --help` describes one command, with examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors are one line on stderr."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    _open_closed()
    _take_left_out()  # what a caller of this function has met before is not the command's
    with _terminal.guarded():
        code = _try(arguments)
        _tell_left_out()
    engine = sys.modules.get("sonde.store.engine")
    if engine is not None and engine.abandoned:
        # A query that would not stop runs on in a thread; waiting for it would hang here.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _tell_left_out() -> None:
    """Say which files of the archive could not be used, if a command met any."""
    if found := _take_left_out():
        first, *others = found
        more = f" and {len(others)} more" if others else ""
        print(f"sonde: {_terminal.clean_lines(first)}{more}: not what was archived under "
              "this name, so the rows are left out; sonde.loss counts them",
              file=sys.stderr)  # fmt: skip


def _take_left_out() -> list[str]:
    archive = sys.modules.get("sonde.store.archive")
    if archive is None:
        return []
    found = sorted(archive.left_out)
    archive.left_out.clear()
    return found


def _open_closed() -> None:
    """Open stdout and stderr where they are closed: that is no reason to fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  kept open


def _try(arguments: list[str]) -> int:
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except Error as error:
        return _say(error)
    except ModuleNotFoundError as error:
        missing = explain_missing(error, f"`sonde {_find_command(arguments)}`")
        if not isinstance(missing, Error):
            raise
        return _say(missing)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _terminal.drop_output()  # the reader (head, less) has seen enough
        return 0


def _say(error: Error) -> int:
    text = f"sonde: {_terminal.clean_lines(str(error))}"
    # A message of several lines, such as an error in SQL with its place, is laid out already.
    print(text if "\n" in text else _terminal.fill(text, sys.stderr), file=sys.stderr)
    return error.exit_code


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    _check_command(arguments)
    parser = make_parser(arguments)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    rest = list[str]()
    chosen = _find_command(arguments)
    if chosen and getattr(plugins.load("cli", chosen), "TAKES_COMMAND", False):
        # A command of the user's own, behind --, is nothing for our parser.
        arguments, rest = _split_command(arguments)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        near = _find_near(parser, chosen, unknown[0])
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"unknown arguments {' '.join(unknown)}; {hint}see `sonde {chosen} --help`"
        )
    parsed.rest = rest
    code: int = parsed.run(parsed)
    return code


def _find_near(parser: Parser, command: str | None, option: str) -> str | None:
    """Return the option of a command that is meant by one that it has not."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            near: str | None = action.choices[command].find_near(option)
            return near
    return None


def _find_command(arguments: Sequence[str]) -> str | None:
    """Return the command that is called, or None if there is none of that name."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    return word if word in plugins.list_names("cli") else None


def _check_command(arguments: Sequence[str]) -> None:
    """Raise an error with the nearest names for a command that there is not."""
    word = next((word for word in arguments if not word.startswith("-")), None)
    names = plugins.list_names("cli")
    if word is None or word in names:
        return
    from difflib import get_close_matches  # only here: it is slow to import

    near = get_close_matches(word, [*names, "help"], 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`sonde --help` lists them"
    raise ConfigError(f"there is no command {word}; {hint}")


def _split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


# ---- parsers -------------------------------------------------------------------------------------


def make_parser(arguments: Sequence[str]) -> Parser:
    """Return a parser of the command that is called; of all names, if none of them is."""
    parser = Parser(
        prog="sonde", usage="sonde COMMAND [arguments]", allow_abbrev=False,
        description="An always-on profiler and flight recorder for Python and AI jobs.",
        formatter_class=Formatter,
    )  # fmt: skip
    parser.add_argument("-V", "--version", action="version", version=f"sonde {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, help=argparse.SUPPRESS)
    chosen = _find_command(arguments)
    # To make the parsers of all commands takes longer than some commands take.
    for name in plugins.list_names("cli") if chosen is None else [chosen]:
        command = _add_parser(commands, f"sonde {name}", plugins.read_help("cli", name))
        if name == chosen:
            words = arguments[arguments.index(name) + 1 :]
            _fill(command, name, words[0] if words else "")
    if chosen is None:
        add_note(parser, f"{_list_commands()}\n{_EXIT_CODES}")
    return parser


def _add_parser(commands: argparse._SubParsersAction[Parser], prog: str, text: str) -> Parser:
    name = prog.rpartition(" ")[2]
    return commands.add_parser(
        name, prog=prog, description=text, allow_abbrev=False, formatter_class=Formatter
    )


def _fill(command: Parser, name: str, word: str) -> None:
    """Add the arguments of a command, or of its sub-command if `word` names one."""
    folder = f"{name}_commands"
    names = plugins.list_names(f"cli.{folder}") if os.path.isdir(f"{_HERE}/{folder}") else ()

    def read_help(one: str) -> str:
        return plugins.read_help(f"cli.{folder}", one)

    if word in names:
        inner = command.add_subparsers(dest="subcommand", required=True)
        parser = _add_parser(inner, f"sonde {name} {word}", read_help(word))
        _add_arguments(parser, plugins.load(f"cli.{folder}", word))
        return
    if names:
        lines = [f"  {one:<9} {read_help(one)}" for one in names]
        add_note(command, f"sub-commands of sonde {name}:\n" + "\n".join(lines) + "\n")
    _add_arguments(command, plugins.load("cli", name))


def _add_arguments(parser: Parser, module: ModuleType) -> None:
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    add_note(parser, "examples:\n" + "".join(f"  {line}\n" for line in module.EXAMPLES))


def _list_commands() -> str:
    lines = []
    for group, title in GROUPS.items():
        lines.append(f"{title}:")
        for name in plugins.list_names("cli"):
            if plugins.read_group("cli", name) == group:
                lines.append(f"  {name:<11} {plugins.read_help('cli', name)}")
        lines.append("")
    return "\n".join(lines)
