"""What a recording lacks, said on stderr: results for programs stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sonde.session import Session
from sonde.session.missing_names import describe_missing_names


def tell_missing(sessions: Iterable[Session]) -> None:
    """Say on stderr which names are missing, if any are."""
    for line in describe_missing_names(sessions).values():
        print(f"sonde: {line}", file=sys.stderr)
