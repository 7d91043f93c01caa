"""The vocabulary of the command line: options that several commands share, each written once."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from sonde import plugins, settings
from sonde.errors import ConfigError

TYPE_CHECKING = False  # `typing` takes longer to import than `sonde stacks` to answer
if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import SupportsWrite

FORMATS = ("table", "vertical", "csv", "json", "arrow", "parquet")
MOMENTS = "10s or 5min (before the end), +30s (after the start), or an ISO time (UTC)"
_SPANS = "30s, 5min, 100ms or plain seconds"
_GAP = re.compile(r".*\S {2,}(?=\S)")  # before the second column of a line
_MORE = " " * 6  # before the rest of a line
TARGET = """\
TARGET is a pid, a program's name or how its command begins ('manage.py nightly'), a job (all its
processes), a session folder or its id, a run, or `all`; several are separated by commas. `sonde ps`
lists what can be named. Or it is a place that hosts share (archive.to), PLACE#JOB, PLACE#JOB/RANK
or PLACE#SESSION; PLACE is s3://bucket/folder, gs://…, abfs://… or a folder, and `sonde ps PLACE`
lists what is there.
"""
CLUSTER = """\
TARGET@CLUSTER asks the agents of many hosts (`sonde agent`); without TARGET, for all. CLUSTER is
hosts:NAME,NAME or file:PATH (one a line), slurm (the nodes of the job we are in), slurm:JOBID,
slurm:node[001-128], dns:NAME (every address of it), torchrun:HOST:PORT/ID or ray:HEAD. NAME:PORT
has another port than 7434.
"""


class Formatter(argparse.HelpFormatter):
    """Help with room for the longest option beside its meaning. Paragraphs fit the terminal; lines
    that are indented stay lines, and a second column in them stays one."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27)

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        from textwrap import wrap  # only for the help

        lines: list[str] = []
        for is_plain, group in groupby(text.splitlines(), lambda line: line[:1].strip() != ""):
            part = list(group)
            lines += wrap(" ".join(part), width) if is_plain else _fit(part, width)
        return "\n".join(lines)


def _fit(lines: Iterable[str], width: int) -> Iterator[str]:
    """Yield indented lines, those broken that are too long."""
    from textwrap import wrap  # as above

    for line in lines:
        gap = _GAP.match(line)
        at = len(gap[0]) if gap else 0
        if len(line) <= width:
            yield line
        elif gap and at > width // 2:
            yield from (line[:at].rstrip(), *wrap(line[at:], width, initial_indent=_MORE,
                                                  subsequent_indent=_MORE))  # fmt: skip
        else:
            yield from wrap(line, width, subsequent_indent=" " * at or _MORE)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all errors of the tool are."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Name what is meant where a value is none of the choices."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from difflib import get_close_matches  # only here: it is slow to import

            near = get_close_matches(str(value), [str(one) for one in action.choices or ()], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentError(action, error.message + hint) from None

    def find_near(self, option: str) -> str | None:
        """Return the option that is meant by one that there is not."""
        from difflib import get_close_matches  # only here: it is slow to import

        names = [name for action in self._actions for name in action.option_strings]
        return next(iter(get_close_matches(option.partition("=")[0], names, 1)), None)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help; what is longer than the terminal is shown in the pager."""
        if file is None and sys.stdout.isatty():
            from sonde.cli import _pager  # only here: commands must begin fast

            _pager.show(lambda screen: print(self.format_help(), end="", file=screen))
        else:
            super().print_help(file)


def add_note(parser: argparse.ArgumentParser, text: str) -> None:
    """Add a paragraph below the list of options."""
    parser.epilog = "\n".join(filter(None, (parser.epilog, text)))


def add_target(
    parser: argparse.ArgumentParser, what: str, *, name: str = "target", optional: bool = False,
    cluster: bool = False,
) -> None:  # fmt: skip
    """Add TARGET, and the paragraph that says what it may be."""
    parser.add_argument(name, metavar="TARGET", nargs="?" if optional else None, help=what,
                        type=str if cluster else _refuse_cluster)  # fmt: skip
    add_note(parser, f"{TARGET}\n{CLUSTER}" if cluster else TARGET)


def _refuse_cluster(target: str) -> str:
    """Return a target of one machine; of a cluster, say who takes it."""
    _before, at, after = target.rpartition("@")
    names = plugins.list_names("fleet.discovery") if at else ()
    if after.partition(":")[0] in names and not os.path.exists(target):
        raise ConfigError(
            f"this command asks no cluster, so it cannot take @{after}; query, ps, stacks, top, "
            "modules, export, config, profile and capture can"
        )
    return target


def add_format(parser: argparse._ActionsContainer, formats: Sequence[str] = FORMATS) -> None:
    """Add --format; `table` is for people, the rest for programs."""
    parser.add_argument(
        "--format", choices=formats, default="table",
        help="how to write the result: %(choices)s (default: %(default)s)", metavar="FORMAT",
    )  # fmt: skip
    if "vertical" in formats:
        parser.add_argument("-x", dest="format", action="store_const", const="vertical",
                            help="short for --format vertical: one column a line")  # fmt: skip


def add_output(
    parser: argparse._ActionsContainer, what: str = "write to this file instead of stdout"
) -> None:
    """Add -o."""
    parser.add_argument("-o", "--output", metavar="FILE", help=what)


def add_window(parser: argparse.ArgumentParser, without: str = "the start") -> None:
    """Add --since and --until."""
    parser.add_argument("--since", metavar="TIME",
                        help=f"only what came after: {MOMENTS} (default: {without})")  # fmt: skip
    parser.add_argument("--until", metavar="TIME",
                        help="only what came before, written alike (default: the end)")  # fmt: skip


def add_span(
    parser: argparse._ActionsContainer, *names: str, what: str, default: str | None = None,
    bare: str | None = None, or_zero: bool = False,
) -> None:  # fmt: skip
    """Add an option that is a length of time, in seconds once parsed. With `bare` the option may
    stand alone, and means that."""
    suffix = "" if default is None else " (default: %(default)s)"
    parser.add_argument(*names, metavar="SPAN", default=default, help=what + suffix, const=bare,
                        nargs=None if bare is None else "?",
                        type=_make_span(names[-1], or_zero))  # fmt: skip


def _make_span(name: str, or_zero: bool) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            seconds = settings.parse_duration(text)
        except (KeyError, ValueError):
            seconds = -1.0
        if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not or_zero):
            raise ConfigError(f"{name} {text!r} is not a time; write {_SPANS}")
        return seconds

    return read


def add_timeout(
    parser: argparse.ArgumentParser, default: str, what: str = "give up after this long"
) -> None:
    """Add --timeout."""
    add_span(parser, "--timeout", what=what, default=default)


def add_cluster_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout of a command that takes the hosts of a cluster."""
    add_timeout(parser, "10s", "how long the hosts of a cluster have for an answer")


def add_by(parser: argparse._ActionsContainer, default: str | None = "wall") -> None:
    """Add --by: which time of a sampled stack counts."""
    from sonde.session.stack_table import WEIGHTS  # `sonde run` must not take long to start

    shown = "cpu, or wall if hardly any was used" if default is None else default
    parser.add_argument(
        "--by", choices=WEIGHTS, default=default,
        help="the time that counts: wall (elapsed), cpu, or gil (while holding the GIL) "
        f"(default: {shown})",
    )  # fmt: skip


def add_limit(parser: argparse._ActionsContainer, default: int, what: str) -> None:
    """Add --limit: how many lines are shown."""
    add_count(parser, "-n", "--limit", what=f"show at most N {what}; 0 is all (default: {default})",
              least=0, default=default)  # fmt: skip


def add_count(
    parser: argparse._ActionsContainer, *names: str, what: str, least: int,
    default: int | None = None,
) -> None:  # fmt: skip
    """Add an option that is a whole number, `least` or more."""

    def read(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ConfigError(f"{names[-1]} {text} is no count: write a whole number from {least}")
        return int(text)

    parser.add_argument(*names, type=read, default=default, metavar="N", help=what)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add --set."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a setting; may be repeated; `sonde config` lists them")  # fmt: skip


def split_settings(words: Sequence[str]) -> dict[str, str]:
    """Return the settings that KEY=VALUE words name."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word} is not KEY=VALUE")
        found[name.strip()] = value.strip()
    return found
