"""What a recording has of what rules need: tables, columns and rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from sonde.advice.period import Period
from sonde.store.held import HeldRecording
from sonde.store.recording import Recording


def find_missing(recording: Recording, needs: Sequence[str]) -> list[str]:
    """Return the tables and columns that this recording cannot have, as an older sonde wrote it."""
    wanted = {split_need(need)[0] for need in needs}
    known = {schema.table: {field.name for field in schema.fields}
             for schema in recording.tables() if schema.table in wanted}  # fmt: skip
    return [need for need in needs if split_need(need)[1] not in known.get(split_need(need)[0], ())]


def split_need(need: str) -> tuple[str, str]:
    """Return the table and the column of `schema.table.column`."""
    table, _, column = need.rpartition(".")
    return table, column


class KnownRows:
    """How many rows of the period each table has, and how many of them know each column that a rule
    needs: one query for a table, whichever rules ask."""

    def __init__(
        self, recording: HeldRecording, needs: Iterable[str], period: Period,
        conditions: Iterable[tuple[str, str]] = (),
    ) -> None:  # fmt: skip
        self._recording, self._inside = recording, period.words["inside"]
        self._conditions: dict[str, list[str]] = {}
        for table, condition in conditions:
            self._conditions.setdefault(table, []).append(condition)
        self._held: dict[str, dict[str, bool]] = {}
        self._columns: dict[str, set[str]] = {}
        for need in needs:
            self._columns.setdefault(split_need(need)[0], set()).add(split_need(need)[1])
        self._counts: dict[str, dict[str, int]] = {}

    @cached_property
    def uses_gpu(self) -> bool:
        """Tell whether torch has memory on a GPU, also if nobody could ask the GPU itself."""
        sql = "SELECT device FROM python.torch_memory WHERE device <> 'cpu' LIMIT 1"
        return bool(self._recording.fetch(sql)[1])

    def has_frames_in(self, files: Sequence[str]) -> bool:
        """Tell whether some stack goes through one of these files, given by the ends of their
        paths: a rule about what they do need not be asked if not."""
        return any(file.endswith(tuple(files)) for file in self._files)

    def holds(self, table: str, condition: str) -> bool:
        """Tell whether a condition is true of the rows of a table: one query answers all that are
        known to be asked of it."""
        if table not in self._held:
            asked = self._conditions[table]
            told = ", ".join(f"COALESCE({one}, FALSE) AS c{at}" for at, one in enumerate(asked))
            _, (row,) = self._recording.fetch(f"SELECT {told} FROM {table}")
            self._held[table] = dict(zip(asked, row, strict=True))
        return self._held[table][condition]

    @cached_property
    def _files(self) -> list[str]:
        sql = "SELECT DISTINCT file FROM python.frame WHERE file IS NOT NULL"
        return [file for (file,) in self._recording.fetch(sql)[1]]

    def find_lack(self, needs: Sequence[str]) -> str:
        """Return why no piece could be judged: the first need that is not there, if any."""
        for table, column in map(split_need, needs):
            if table not in self._counts:
                self._counts[table] = self._count(table)
            if not self._counts[table][""]:
                return f"{table} has no rows"
            if not self._counts[table][column]:
                return f"{table}.{column} is unknown"
        return ""

    def _count(self, table: str) -> dict[str, int]:
        known = _list_columns(self._recording, table)
        wanted = sorted(self._columns[table] & known)
        counts = "".join(f", COUNT({column})" for column in wanted)
        inside = self._inside if "ts" in known else "TRUE"
        _, (row,) = self._recording.fetch(f"SELECT COUNT(*){counts} FROM {table} WHERE {inside}")
        return dict(zip(["", *wanted], row, strict=True))


def _list_columns(recording: Recording, table: str) -> set[str]:
    return {f.name for schema in recording.tables() if schema.table == table for f in schema.fields}
