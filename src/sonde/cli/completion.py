"""Have a shell complete commands, options and targets: prints what bash, zsh or fish must read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence

from sonde import cli, environ, plugins
from sonde.errors import Error
from sonde.session import list_sessions
from sonde.words import name_program

GROUP = "learn"
EXAMPLES = (
    "sonde completion bash                    in ~/.bashrc: source <(sonde completion bash)",
    "sonde completion zsh                     in ~/.zshrc: source <(sonde completion zsh)",
    "sonde completion fish                    in config.fish: sonde completion fish | source",
)
TAKES_COMMAND = True  # behind -- are the words so far: the scripts ask for what may follow

# The words go through no expansion: a job may be called $(rm -r .).
_SCRIPTS = {
    "bash": """\
_sonde() {
    mapfile -t COMPREPLY < <(sonde completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _sonde sonde
""",
    "zsh": """\
_sonde() {
    local -a found
    found=("${(@f)$(sonde completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _sonde sonde
""",
    "fish": """\
function __sonde
    set -l words (commandline -opc)
    sonde completion fish -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c sonde -a '(__sonde)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_SCRIPTS), metavar="SHELL", help="%(choices)s")


def run(args: argparse.Namespace) -> int:
    if not args.rest:
        print(_SCRIPTS[args.shell], end="")
        return 0
    *before, begun = args.rest
    found = {word for word in _list_words(before, begun) if word.startswith(begun)}
    print(*sorted(found), sep="\n")
    return 0


def _list_words(before: Sequence[str], begun: str) -> Iterable[str]:
    """Return what may stand where the cursor is; files are the shell's own."""
    names = plugins.list_names("cli")
    command = next((word for word in before if word in names), None)
    if command is None:
        return [*names, "help"] if not begun.startswith("-") else ["--help", "--version"]
    if "--" in before or before[0] == "help":
        return ()
    parser = _find_parser(before)
    options = parser._option_string_actions if parser else {}
    last = options.get(before[-1])
    if last is not None and last.nargs != 0:
        return map(str, last.choices or ())
    if begun.startswith("-"):
        return options
    takes_target = parser is not None and any(
        action.metavar in ("TARGET", "BEFORE", "AFTER") for action in parser._actions
    )
    return [*_list_targets(takes_target), *(_list_inner(command) if len(before) == 1 else ())]


def _find_parser(words: Sequence[str]) -> argparse.ArgumentParser | None:
    """Return the parser of the innermost command that is named."""
    parser: argparse.ArgumentParser | None = cli.make_parser(words)
    for word in words:
        inner = parser and next(
            (one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None
        )
        if inner and word in inner.choices:
            parser = inner.choices[word]
    return parser


def _list_inner(command: str) -> tuple[str, ...]:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{command}_commands")
    return plugins.list_names(f"cli.{command}_commands") if os.path.isdir(folder) else ()


def _list_targets(is_wanted: bool) -> Iterator[str]:
    """Yield pids, programs and jobs that can be named, as one word each."""
    if not is_wanted:
        return
    yield "all"
    for session in list_sessions(environ.find_root()):
        try:
            names = (str(session.pid), name_program(session.meta.argv), session.meta.job or "")
        except Error:
            continue  # damaged
        for name in names:
            if name.isprintable() and not set(name) & set(" \t'\"\\$`:=*?[]"):
                yield name
