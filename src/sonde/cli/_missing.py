"""What a recording lacks, said on stderr: results for programs stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from sonde.cli._terminal import drop_output
from sonde.errors import HostsMissing
from sonde.session import Session
from sonde.session.missing_names import describe_missing_names
from sonde.words import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.fleet.cluster import Gathered


def tell_missing(sessions: Iterable[Session]) -> None:
    """Say on stderr which names are missing, if any are."""
    for line in describe_missing_names(sessions).values():
        print(f"sonde: {line}", file=sys.stderr)


def tell_hosts(found: Gathered) -> int:
    """Say on stderr which hosts are missing in an answer; return the exit code that it has."""
    for line in found.describe_missing():
        print(f"sonde: {clean(line)}", file=sys.stderr)
    return HostsMissing.exit_code if found.failures else 0


def show_answer(found: Gathered, write: Callable[[], object]) -> int:
    """Write an answer, and say on stderr which hosts are missing in it; return the exit code.

    On a terminal the last lines are the ones that are seen. Elsewhere whoever reads may have enough
    after ten lines (`| head`), and must know of the hosts all the same."""
    if sys.stdout.isatty():
        write()
        sys.stdout.flush()
        return tell_hosts(found)
    code = tell_hosts(found)
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    return code
