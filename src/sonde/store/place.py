"""A shared place: the folder or the object store to which many hosts send their archives.

A file `<table>/date=<day>/<session>-<first>-<last>.parquet` holds the rows of one session with
tickets first … last-1, and is never changed. While a session runs, its newest rows are in a file
that ends in `.live.parquet`; the next one begins with the same ticket and so takes its place. The
rows of a view are a version each: the highest `last` counts. `sonde compact` merges files: a
merged file counts once `_merged-<id>.json`, the list of the files that it replaces, is there."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.fs as pafs

from sonde import environ
from sonde.errors import Error, NoSession

SESSIONS = "sonde.session"
_CONNECT_S, _REQUEST_S, _TRIES = 10.0, 30.0, 3  # of one request; whoever asks may ask again
_NAME = re.compile(
    r"(?P<session>.+-\d+-[\dT.]+)-(?P<first>\d{20})-(?P<last>\d{20})(?P<live>\.live)?"
)
_MERGED = re.compile(r"_?merged-(?P<id>[0-9a-f-]+)")
_AZURE = ("abfs", "abfss")
_AZURE_KEYS = {"AZURE_STORAGE_KEY": "account_key", "AZURE_STORAGE_SAS_TOKEN": "sas_token"}
_S3_OPTIONS = ("region", "scheme", "endpoint_override")


class PlaceError(Error):
    """A shared place cannot be reached, refuses, or has no room."""


class SharedFile:
    """One Parquet file of a place: rows of one session, or merged ones of many."""

    __slots__ = ("bytes", "first", "is_live", "last", "path", "session")

    def __init__(self, path: str, size: int, session: str | None = None, first: int = 0,
                 last: int = 0, is_live: bool = False) -> None:  # fmt: skip
        self.path, self.bytes, self.session = path, size, session
        self.first, self.last, self.is_live = first, last, is_live


def name_file(session: str, first: int, last: int, is_live: bool) -> str:
    """Return the name of a file of one session."""
    return f"{session}-{first:020d}-{last:020d}{'.live' if is_live else ''}.parquet"


def read_name(path: str, size: int = 0) -> SharedFile | None:
    """Return what the name of a file says; None if it is none of one session."""
    match = _NAME.fullmatch(path.rpartition("/")[2].removesuffix(".parquet"))
    if match is None:
        return None
    first, last = int(match["first"]), int(match["last"])
    return SharedFile(path, size, match["session"], first, last, match["live"] is not None)


def is_place(target: str) -> bool:
    """Tell whether a target names a shared place, or something in one."""
    folder = split_target(target)[0]
    return "://" in folder or os.path.isdir(os.path.join(folder, SESSIONS))


def split_target(target: str) -> tuple[str, str]:
    """Split `PLACE#JOB`; the job, or a rank of it, or a session, is empty if all are meant."""
    place, _, part = target.partition("#")
    return place.rstrip("/"), part


class Listing:
    """The files of one table: those that hold each row once, and those that others cover."""

    def __init__(self, files: list[SharedFile], covered: list[SharedFile],
                 lists: dict[str, list[str]]) -> None:  # fmt: skip
        self.files, self.covered = files, covered
        self.lists = lists  # by merged file: the names of the files that it replaces

    def has_others(self, sessions: Collection[str]) -> bool:
        """Tell whether merged files also hold rows of other sessions than these."""
        names = (read_name(name) for names in self.lists.values() for name in names)
        return any(one is None or one.session not in sessions for one in names)

    def choose(self, sessions: Collection[str]) -> list[SharedFile]:
        """Return the files with rows of these sessions."""
        chosen = []
        for file in self.files:
            if file.session is not None:
                wanted = file.session in sessions
            else:
                names = map(read_name, self.lists[file.path])
                wanted = any(one is not None and one.session in sessions for one in names)
            if wanted:
                chosen.append(file)
        return chosen


class FleetPlace:
    """A shared place, opened."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self.fs, self.base = _open(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise PlaceError(f"{uri} cannot be opened: {_say(error)}") from None
        self.is_local = isinstance(self.fs, pafs.LocalFileSystem)

    def path(self, *parts: str) -> str:
        """Return the path of something in this place."""
        return "/".join((self.base, *parts))

    # ---- reading ----

    def list_tables(self) -> list[str]:
        """Return the names of the tables that have files."""
        # Google's store has no folders, and Arrow shows there only those that were made by hand.
        is_flat = self.fs.type_name == "gcs"
        found = self._list(pafs.FileSelector(self.base, allow_not_found=True, recursive=is_flat))
        if is_flat:
            names = {one.path[len(self.base) + 1 :].partition("/")[0] for one in found}
        else:
            names = {one.base_name for one in found if one.type == pafs.FileType.Directory}
        return sorted(name for name in names if "." in name)

    def list_files(self, table: str) -> Listing:
        """Return the files of a table."""
        selector = pafs.FileSelector(self.path(table), allow_not_found=True, recursive=True)
        found: list[SharedFile] = []
        merged: dict[str, SharedFile] = {}
        lists: dict[str, str] = {}
        for one in self._list(selector):
            match = _MERGED.fullmatch(one.base_name.partition(".")[0])
            if match is not None and one.base_name.endswith(".json"):
                lists[match["id"]] = one.path
            elif match is not None and one.base_name.endswith(".parquet"):
                merged[match["id"]] = SharedFile(one.path, one.size)
            elif one.base_name.endswith(".parquet") and not one.base_name.startswith("."):
                file = read_name(one.path, one.size)
                if file is not None:
                    found.append(file)
        # Without its list a merged file is not complete, or not to be read yet.
        known = {merged[key].path: self._read_list(path)
                 for key, path in lists.items() if key in merged}  # fmt: skip
        kept, covered = _cover(found, known.values())
        whole = [file for key, file in merged.items() if key in lists]
        return Listing([*whole, *kept], covered, known)

    def _list(self, selector: pafs.FileSelector) -> list[Any]:
        try:
            return list(self.fs.get_file_info(selector))
        except (OSError, pa.ArrowException) as error:
            raise PlaceError(f"{self.uri} cannot be listed: {_say(error)}") from None

    def _read_list(self, path: str) -> list[str]:
        with self.fs.open_input_stream(path) as file:
            names: list[str] = json.loads(file.read())
        return names

    # ---- writing ----

    def write(self, path: str, data: Any) -> None:
        """Write a file that appears whole or not at all."""
        try:
            if self.is_local:
                self._write_local(path, data)
                return
            with self.fs.open_output_stream(path) as stream:
                stream.write(data)
            size = self.fs.get_file_info(path).size
        except (OSError, pa.ArrowException) as error:
            raise PlaceError(f"{self.uri} does not take files: {_say(error)}") from None
        if size != len(data):
            raise PlaceError(f"{self.uri} has {size} of the {len(data)} bytes of {path}")

    def _write_local(self, path: str, data: Any) -> None:
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        hidden = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
        try:
            with open(hidden, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, path)
        finally:
            if os.path.exists(hidden):
                os.unlink(hidden)

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        try:
            self.fs.delete_file(path)
        except FileNotFoundError:
            return
        except (OSError, pa.ArrowException) as error:
            raise PlaceError(f"{self.uri} does not let files go: {_say(error)}") from None


def _cover(
    files: Iterable[SharedFile], lists: Iterable[list[str]]
) -> tuple[list[SharedFile], list[SharedFile]]:
    """Return the files that hold each row once, and those whose rows are in another one.

    Of two that begin with the same ticket the longer one counts, and what was merged counts as
    if it were still there: a file that is sent again must not bring its rows back."""
    merged = {name for names in lists for name in names}
    gone = [one for one in map(read_name, merged) if one is not None]
    ordered: dict[str | None, list[tuple[SharedFile, bool]]] = {}
    for file in gone:
        ordered.setdefault(file.session, []).append((file, True))
    covered = []
    for file in files:
        if file.path.rpartition("/")[2] in merged:
            covered.append(file)
        else:
            ordered.setdefault(file.session, []).append((file, False))
    kept = []
    for mine in ordered.values():
        mine.sort(key=lambda one: (one[0].first, -one[0].last, not one[1]))
        end = -1
        for file, is_gone in mine:
            if file.first < end:
                if not is_gone:
                    covered.append(file)
                continue
            end = file.last
            if not is_gone:
                kept.append(file)
    return kept, covered


def _open(uri: str) -> tuple[pafs.FileSystem, str]:
    scheme, has_scheme, rest = uri.partition("://")
    if not has_scheme:
        return pafs.LocalFileSystem(), os.path.abspath(uri)
    path, _, query = rest.partition("?")
    if scheme != "s3":
        fs, base = pafs.FileSystem.from_uri(uri)
        return _add_azure_key(fs) if scheme in _AZURE else fs, base.strip("/")
    options = dict(parse_qsl(query))
    unknown = sorted(set(options) - set(_S3_OPTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]} is not an option; known: {', '.join(_S3_OPTIONS)}")
    if "endpoint_override" in options and "region" not in options:
        options["region"] = "us-east-1"  # or Amazon would be asked where the bucket is
    elif "region" not in options:
        options["region"] = pafs.resolve_s3_region(path.partition("/")[0])
    endpoint = options.get("endpoint_override", "")
    if "://" in endpoint:
        options["scheme"], _, options["endpoint_override"] = endpoint.partition("://")
    fs = pafs.S3FileSystem(
        connect_timeout=_CONNECT_S, request_timeout=_REQUEST_S, background_writes=False,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_TRIES), **options,
    )  # fmt: skip
    return fs, path.rstrip("/")


def _add_azure_key(fs: pafs.FileSystem) -> pafs.FileSystem:
    """Return a store of Azure's with the key that its own tools would use. Arrow finds identities
    by itself, but takes a key only in the address, where it would be stored with the recording."""
    found = environ.read_variables(_AZURE_KEYS)
    if not found:
        return fs
    make, (options,) = fs.__reduce__()  # all that it was made with
    return make({**options, **{_AZURE_KEYS[name]: value for name, value in found.items()}})


def _say(error: BaseException) -> str:
    return " ".join(str(error).split())


def require_files(place: FleetPlace) -> None:
    """Raise NoSession if nothing was ever shipped to a place."""
    if SESSIONS not in place.list_tables():
        raise NoSession(f"nothing has been shipped to {place.uri}; see archive.to")


def find_day(t_us: int) -> str:
    """Return the folder of a moment."""
    return time.strftime("date=%Y-%m-%d", time.gmtime(t_us // 10**6))
