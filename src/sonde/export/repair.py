"""Chrome traces of other tools, damaged or not, as rows that every viewer accepts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import isfinite, isnan
from sys import float_info
from typing import Any, NamedTuple, TypeGuard

from sonde.analysis.timeline import Lane, TimelineRow
from sonde.errors import Damaged
from sonde.export.repair_scan import Found, find_about, iter_events, read_text

_SAFE = 2**31  # not every viewer keeps larger process and thread ids
_LARGEST = float_info.max
_EVER_US = 2**52  # a hundred years
_NAMELESS = "?"
_PAIRS = {"B": "E", "b": "e", "(": ")"}
_SCOPES = {"g": "g", "global": "g", "p": "p", "process": "p"}


class Piece(NamedTuple):
    """A beginning event and its end."""

    start_ns: int
    end_ns: int
    event: dict[str, Any]


class RepairedTrace:
    """The rows of one file in the order of time, and what was repaired."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.repairs: Found = Counter()
        self.rows: list[TimelineRow] = []
        self.names: dict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
        self._numbers: dict[object, int] = {}
        self._tracks = 0
        text = read_text(path, self.repairs)
        try:
            about = find_about(text).get("otherData")
            start = about.get("start_wall_ns", 0) if isinstance(about, dict) else 0
            self._start_ns = int(start)
            events = list(self._check(iter_events(text, self.repairs)))
        except Damaged as error:
            raise Damaged(f"{path}: {error}") from None
        except (TypeError, ValueError):
            raise Damaged(f"{path}: its start is not a number") from None
        # A stable sort: events of equal times stay in the order of the file.
        events.sort(key=lambda event: event["ts"])
        self._last_ns = max((self._end(event) for event in events), default=0)
        self._place(events)
        self.rows.sort(key=lambda row: (row.start_ns, -row.dur_ns))

    def _check(self, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield events whose times, processes and threads are valid."""
        for event in events:
            ph = event.get("ph")
            event["pid"] = self._number("process", event.get("pid", 0))
            event["tid"] = self._number("thread", event.get("tid", 0))
            if ph == "M":
                self._name(event)
                continue
            ts = event.get("ts")
            if not isinstance(ph, str) or not _is_time(ts):
                self.repairs["left out: an event without a kind or a time"] += 1
                continue
            name = event.get("name")
            event["name"] = _NAMELESS if name is None or name == "" else str(name)
            event["cat"] = str(event.get("cat") or "event")
            event["ts"] = round(ts * 1000)
            if not isinstance(event.get("args"), dict):
                event["args"] = {}
            yield event

    def _number(self, what: str, value: object) -> int:
        """Return a number that viewers keep exactly: a double loses digits beyond 2^53."""
        if isinstance(value, int) and 0 <= value < _SAFE:
            return value
        key = (what, json.dumps(value))  # the value may be anything
        known = self._numbers.get(key)
        if known is None:
            self.repairs[f"the number of a {what} that viewers would round"] += 1
            known = self._numbers[key] = _SAFE - 1 - len(self._numbers)
        return known

    def _name(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        kind, _, key = str(event.get("name")).partition("_")
        if (
            isinstance(args, dict)
            and kind in ("process", "thread")
            and key in ("name", "sort_index")
        ):
            tid = event["tid"] if kind == "thread" else 0
            self.names[event["pid"], tid][key] = args.get(key)

    def _end(self, event: dict[str, Any]) -> int:
        dur = event.get("dur", 0)
        event["dur"] = round(dur * 1000) if _is_time(dur) and dur >= 0 else 0
        return int(event["ts"] + event["dur"])

    # ---- events ----------------------------------------------------------------------------------

    def _place(self, events: list[dict[str, Any]]) -> None:
        pieces: dict[str, list[Piece]] = {"X": [], "b": [], "(": []}
        opened: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            ph = event["ph"]
            if ph == "X":
                pieces["X"].append(Piece(event["ts"], event["ts"] + event["dur"], event))
            elif ph in _PAIRS:
                opened[_key(event)].append(event)
            elif ph in _PAIRS.values():
                self._close(event, opened, pieces)
            else:
                self._add_point(event)
        for left in opened.values():
            for event in left:
                self.repairs["a beginning without an end, which lasts to the end now"] += 1
                event["args"]["unfinished"] = True
                _put(pieces, Piece(event["ts"], self._last_ns, event))
        self._add_slices(pieces["X"])
        self._add_tracks(pieces["b"])
        for piece in pieces["("]:
            self.repairs["a frame, written as ( and ), which viewers refuse"] += 1
            self._add_track(piece)

    def _close(
        self,
        event: dict[str, Any],
        opened: dict[tuple[object, ...], list[dict[str, Any]]],
        pieces: dict[str, list[Piece]],
    ) -> None:
        waiting = opened.get(_key(event), [])
        at = _find_begun(waiting, event["name"])
        if at is None:
            self.repairs["left out: an end without a beginning"] += 1
            return
        begun = waiting.pop(at)
        begun["args"] |= event["args"]
        _put(pieces, Piece(begun["ts"], max(begun["ts"], event["ts"]), begun))

    def _add_point(self, event: dict[str, Any]) -> None:
        ph = event["ph"]
        if ph in ("i", "I", "R") or (ph == "n" and "id" not in event):
            if ph == "n":
                self.repairs["a marker without an id, which viewers drop"] += 1
            scope = _SCOPES.get(str(event.get("s", "t")), "t")
            self._add("i", event, scope=scope)
        elif ph == "n":
            self._add("i", event, scope="p")
        elif ph == "C":
            good = {key: min(max(value, -_LARGEST), _LARGEST)
                    for key, value in event["args"].items() if _is_number(value)}  # fmt: skip
            if good:
                self._add("C", {**event, "args": good}, number=event.get("id"))
            else:
                self.repairs["left out: a counter without a number"] += 1
        elif ph in ("s", "t", "f") and "id" in event:
            self._add(ph, event, number=event["id"])
        else:
            self.repairs[f"left out: an event of kind {ph!r}, which no timeline has"] += 1

    def _add_slices(self, pieces: list[Piece]) -> None:
        """Add slices to their thread where they nest, and the others beside it."""
        stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
        for piece in sorted(pieces, key=lambda one: (one.start_ns, -one.end_ns)):
            stack = stacks[piece.event["pid"], piece.event["tid"]]
            while stack and stack[-1] <= piece.start_ns:
                stack.pop()
            if stack and piece.end_ns > stack[-1]:
                self.repairs["a slice that overlaps another, moved beside it"] += 1
                self._add_track(piece)
            else:
                stack.append(piece.end_ns)
                self._add("X", piece.event, piece.end_ns - piece.start_ns)

    def _add_tracks(self, pieces: list[Piece]) -> None:
        """Add regions of one id to one track where they nest; the others get their own tracks."""
        stacks: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for piece in sorted(pieces, key=lambda one: (one.start_ns, -one.end_ns)):
            key = _key(piece.event)
            stack = stacks[key]
            while stack and stack[-1] <= piece.start_ns:
                stack.pop()
            if stack and piece.end_ns > stack[-1]:
                self.repairs["a region that overlaps another of its id"] += 1
                self._add_track(piece)
            else:
                stack.append(piece.end_ns)
                self._add_track(piece, f"i{self._numbers.setdefault(key, len(self._numbers))}")

    def _add_track(self, piece: Piece, number: str | None = None) -> None:
        if number is None:
            self._tracks += 1
            number = f"t{self._tracks}"
        self._add("b", piece.event, piece.end_ns - piece.start_ns, number)

    def _add(
        self,
        ph: str,
        event: dict[str, Any],
        dur_ns: int = 0,
        number: object = None,
        scope: str | None = None,
    ) -> None:
        self.rows.append(
            TimelineRow(
                ph, event["pid"], event["tid"], event["ts"] + self._start_ns, dur_ns,
                event["name"], event["cat"], self._dump(event["args"]) if event["args"] else None,
                None if number is None else str(number), scope)
        )  # fmt: skip

    def _dump(self, args: dict[str, Any]) -> str:
        try:
            return json.dumps(args, allow_nan=False)
        except ValueError:
            self.repairs["a number that JSON does not have, written as text now"] += 1
            return json.dumps(_spell(args))


def _key(event: dict[str, Any]) -> tuple[object, ...]:
    """Return what a beginning and its end have in common besides the name."""
    ph = event["ph"]
    if ph in ("b", "e"):
        return "b", event["cat"], json.dumps(event.get("id", event.get("id2")))
    return "B" if ph in "BE" else "(", event["pid"], event["tid"]


def _find_begun(waiting: list[dict[str, Any]], name: str) -> int | None:
    """Return which beginning an end belongs to: the newest of its name, if it has a name."""
    for at in reversed(range(len(waiting))):
        if _NAMELESS in (name, waiting[at]["name"]) or waiting[at]["name"] == name:
            return at
    return None


def _put(pieces: dict[str, list[Piece]], piece: Piece) -> None:
    pieces["X" if piece.event["ph"] == "B" else piece.event["ph"]].append(piece)


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, float):
        return not isnan(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: object) -> TypeGuard[float]:
    """Tell whether a time can be written as nanoseconds in 64 bits."""
    return _is_number(value) and abs(value) < _EVER_US


def _spell(value: Any) -> Any:
    """Return the same value, with text in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _spell(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_spell(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def merge(traces: Sequence[RepairedTrace]) -> Iterator[TimelineRow | Lane]:
    """Yield the lanes and rows of all files; processes of two files never share a number."""
    taken: set[int] = set()
    for at, trace in enumerate(traces):
        numbers: dict[int, int] = {}
        for pid in sorted({row.pid for row in trace.rows} | {pid for pid, _ in trace.names}):
            number = pid
            while number in taken:
                number = (number * 31 + 17) % _SAFE
            numbers[pid] = number
            taken.add(number)
        for row in trace.rows:
            # A lane without a name gets one: viewers sort and fold by names.
            for tid in (0, row.tid):
                trace.names.setdefault((row.pid, tid), {})
        for (pid, tid), about in trace.names.items():
            order = about.get("sort_index")
            name = str(about.get("name") or (f"process {pid}" if tid == 0 else f"thread {tid}"))
            yield Lane(numbers[pid], tid, name, order if isinstance(order, int) else tid)
        for row in trace.rows:
            apart = row.id if row.id is None or row.ph == "C" else f"{at}.{row.id}"
            yield row._replace(pid=numbers[row.pid], id=apart)
