"""Commands in a narrow column, as `sonde ps` shows them: without what all of them share."""

from __future__ import annotations

from collections.abc import Sequence

FORKED = "└"  # before what a process was forked by, which is no command
_CUT = "…"
_SHORTEST = 4  # letters of a program's name that still tell something


def fit_commands(commands: Sequence[str], room: int) -> list[str]:
    """Return the commands as they fit a column: of one that does not fit, the words that others of
    the same program do not have, with the options that these belong to."""
    by_program: dict[str, dict[str, list[str]]] = {}
    shown = {}
    for command in dict.fromkeys(commands):
        words = _name_program(command).split(" ")
        if words[0] == FORKED or len(command) <= room:
            shown[command] = command
        if words[0] != FORKED:
            by_program.setdefault(words[0], {})[command] = words
    for program, alike in by_program.items():
        for command, words in alike.items():
            rest = _find_difference(words, [other for other in alike.values() if other != words])
            whole = " ".join(words)
            fits = len(whole) <= room or not rest
            shown.setdefault(command, whole if fits else _join(program, rest, room))
    return [shown[command] for command in commands]


def _name_program(command: str) -> str:
    """Return a command that begins with its program: `gunicorn -w 4` for `python -m gunicorn -w 4`,
    in which the interpreter tells nothing."""
    first, _, rest = command.partition(" ")
    return rest.removeprefix("-m ") if first.startswith("python") and rest[:3] == "-m " else command


def _find_difference(words: Sequence[str], others: Sequence[Sequence[str]]) -> list[str]:
    """Return the words after the program that not all others have at the same place, counted from
    the first or, where there are more or fewer of them, from the last one."""
    kept: list[str] = []
    for at in range(1, len(words)):
        same = all(
            words[at : at + 1] == other[at : at + 1]
            or (len(other) != len(words) and words[at:] == other[at - len(words) :])
            for other in others
        )
        if not same:
            option = words[at - 1]
            if option.startswith("-") and not words[at].startswith("-") and option not in kept[-1:]:
                kept.append(option)
            kept.append(words[at])
    return kept


def _join(program: str, rest: Sequence[str], room: int) -> str:
    text = " ".join(rest)
    full = f"{program} {_CUT} {text}"
    if len(full) <= room:
        return full
    left = room - len(text) - 2
    return f"{program[:left]}{_CUT} {text}" if left >= _SHORTEST else f"{_CUT} {text}"
