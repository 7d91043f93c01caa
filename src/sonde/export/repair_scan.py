"""Reads the events of a trace file, however damaged: keeps what is intact, counts the rest."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sonde.errors import Damaged

Found = Counter[str]  # what was repaired or left out, and how often

_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[\s,]*")
_START = re.compile(r'"traceEvents"\s*:\s*\[')
_KEY_END = re.compile(r'"(?=\s*:)')
# A quote ends a value only where JSON could go on: the next key, or the end of the object.
_VALUE_END = re.compile(r'"(?=\s*(?:,\s*"[^"\n]*"\s*:|[}\]]\s*(?:[,}\]]|$)))')
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
_NEXT = re.compile(r'\{\s*"(?:name|cat|ph|ts|pid)"')
_PIECE, _LONGEST = 2**13, 2**22  # characters; few events are longer than a piece
_DECODER = json.JSONDecoder()
_LENIENT = json.JSONDecoder(strict=False)


def read_text(path: str, found: Found) -> str:
    """Return the text of a trace, uncompressed as far as possible."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from None
    if raw.startswith(_GZIP):
        raw = _unpack(raw, found)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        found["text that is not UTF-8"] += 1
        return raw.decode("utf-8", "replace")


def _unpack(raw: bytes, found: Found) -> bytes:
    done = []
    while raw.startswith(_GZIP):
        unpacker = zlib.decompressobj(wbits=31)
        try:
            done.append(unpacker.decompress(raw))
        except zlib.error:
            found["damaged gzip, read up to the damage"] += 1
            break
        if not unpacker.eof:
            found["gzip without its end"] += 1
            break
        raw = unpacker.unused_data
    return b"".join(done)


def find_about(text: str) -> dict[str, Any]:
    """Return what a trace says besides its events; nothing if that part is damaged."""
    start = _START.search(text)
    head = text[: start.start()].rstrip().rstrip(",") + "}" if start else "{}"
    try:
        about = _LENIENT.decode(head)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def iter_events(text: str, found: Found) -> Iterator[dict[str, Any]]:
    """Yield every event that can be read, in the order of the file."""
    at, first = _find_start(text), True
    pieces = _Pieces(text)
    while True:
        gap = _SPACE.match(text, at)
        assert gap is not None  # the pattern also matches an empty text
        if gap[0].count(",") != (0 if first else 1) and text[gap.end() : gap.end() + 1] == "{":
            found["commas too many or too few"] += 1
        at, first = gap.end(), False
        if at >= len(text):
            found["no end of the list of events"] += 1
            return
        if text[at] != "{":
            if text[at] != "]":
                found["something that is no event"] += 1
            elif text.lstrip()[0] == "{" and "}" not in text[at:]:
                found["no end of the trace"] += 1
            return
        event, at = pieces.read_event(at, found)
        if event is not None:
            yield event


def _find_start(text: str) -> int:
    bare = text.lstrip()
    if bare.startswith("["):
        return text.index("[") + 1
    start = _START.search(text)
    if start is None:
        raise Damaged("no trace events in it: neither a list nor an object with traceEvents")
    return start.end()


class _Pieces:
    """Reads events from a text piece by piece. Python counts the lines before an error in JSON, so
    that in one long text every damaged event would cost the time to read all events before it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._hopeless = set[int]()  # of events that are longer than a piece
        self._cut(0)

    def _cut(self, at: int) -> None:
        self._base, self._piece = at, self._text[at : at + 2 * _PIECE]
        self._loose = _Loose(self._piece)

    def read_event(self, at: int, found: Found) -> tuple[dict[str, Any] | None, int]:
        """Return the event that begins at a place, or None if it is lost, and where to go on."""
        if at - self._base > _PIECE:
            self._cut(at)
        event, end = self._read(at - self._base, found)
        if event is not None:
            return event, self._base + end
        found["left out: an event that is cut or damaged"] += 1
        after = _NEXT.search(self._text, at + 1)
        return None, after.start() if after else len(self._text)

    def _read(self, at: int, found: Found) -> tuple[dict[str, Any] | None, int]:
        is_last = self._base + len(self._piece) >= len(self._text)
        try:
            return _DECODER.raw_decode(self._piece, at)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or error.pos > len(self._piece) - 16
            if is_cut and not is_last:
                return self._read_long(at, found)
        except (ValueError, RecursionError):
            pass
        event, end = _read_damaged(self._loose, at, found)
        if event is None and not is_last and not _NEXT.search(self._piece, at + 1):
            return self._read_long(at, found)
        return event, end

    def _read_long(self, at: int, found: Found) -> tuple[dict[str, Any] | None, int]:
        """Read an event that is longer than a piece."""
        text = self._text[self._base + at : self._base + at + _LONGEST]
        try:
            event, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            loose = _Loose(text, self._base + at, self._hopeless)
            event, end = _read_damaged(loose, 0, found)
        return event, at + end


def _read_damaged(loose: _Loose, at: int, found: Found) -> tuple[dict[str, Any] | None, int]:
    try:
        event = _LENIENT.raw_decode(loose.text, at)
        found["control characters that were not escaped"] += 1
        return event
    except (ValueError, RecursionError):
        pass
    try:
        event = loose.read_object(at)
        found["quotes or backslashes that were not escaped"] += 1
        return event
    except (ValueError, RecursionError):
        return None, at


class _Loose:
    """Reads JSON whose texts may contain quotes: guesses where they end.

    `hopeless` are the places of keys (plus `base`) from which no end of an object was found.
    What is read from there depends on the place alone, so it is read once: without this, every one
    of many damaged events would be read to the end of the text."""

    def __init__(self, text: str, base: int = 0, hopeless: set[int] | None = None) -> None:
        self.text = text
        self._base, self._hopeless = base, set[int]() if hopeless is None else hopeless
        # Where each pattern was last searched for, and what was found: a search that begins between
        # the two would find the same.
        self._known: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def read_object(self, at: int) -> tuple[dict[str, Any], int]:
        """Return the object that begins at a place, and where it ends."""
        found: dict[str, Any] = {}
        passed = list[int]()
        at = self._skip(at + 1)
        try:
            while self.text[at : at + 1] != "}":
                passed.append(self._base + at)
                if self.text[at : at + 1] != '"' or passed[-1] in self._hopeless:
                    raise ValueError
                key, value, at = self._read_pair(at)
                found[key] = value
        except ValueError:
            self._hopeless.update(passed)
            raise
        return found, at + 1

    def _read_pair(self, at: int) -> tuple[str, Any, int]:
        key, at = self._read_text(at, _KEY_END)
        value, at = self._read_value(self._skip(self._skip(at) + 1))
        at = self._skip(at)
        return key, value, self._skip(at + 1) if self.text[at : at + 1] == "," else at

    def _read_value(self, at: int) -> tuple[Any, int]:
        mark = self.text[at : at + 1]
        if mark == '"':
            return self._read_text(at, _VALUE_END)
        if mark == "{":
            return self.read_object(at)
        if mark == "[":
            return _LENIENT.raw_decode(self.text, at)
        match = _SCALAR.match(self.text, at)
        if match is None:
            raise ValueError
        return json.loads(match[0]), match.end()

    def _read_text(self, at: int, end: re.Pattern[str]) -> tuple[str, int]:
        match = self._search(end, at + 1)
        if match is None:
            raise ValueError
        raw = self.text[at + 1 : match.start()]
        try:
            return str(json.loads(f'"{raw}"', strict=False)), match.end()
        except ValueError:
            return raw, match.end()  # the text was not escaped at all

    def _search(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        begin, match = self._known.get(pattern, (len(self.text) + 1, None))
        if not begin <= at <= (len(self.text) if match is None else match.start()):
            match = pattern.search(self.text, at)
            self._known[pattern] = at, match
        return match

    def _skip(self, at: int) -> int:
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at
