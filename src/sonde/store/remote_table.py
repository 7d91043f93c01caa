"""A table of a shared place, as another engine is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.session.schema import Field


@dataclass(frozen=True)
class RemoteTable:
    """Which files hold the rows of a table, and which of these rows count."""

    view: str  # its name in statements that were written for the engine
    fields: Sequence[Field]
    paths: Sequence[str]
    sessions: Sequence[str]  # only their rows count; all, if empty
    once: Sequence[str]  # of rows that are equal in these columns one counts
