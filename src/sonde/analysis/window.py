"""Windows of time: what --since and --until mean."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, NamedTuple

from sonde import settings
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.store.recording import Recording

_FORMS = "10s or 5m (before the end), +30s (after the start), or 2030-01-31T12:00:00 (UTC)"
LAST = "SELECT epoch_us(MAX(ts)) AS us FROM python.stack_sample"


class Window(NamedTuple):
    """A stretch of wall clock time in nanoseconds since 1970: after `since_ns`, up to `until_ns`.

    What happened at `since_ns` belongs to the window before: adjacent windows share nothing."""

    since_ns: int
    until_ns: int


def find_window(
    recording: Recording,
    since: str | None,
    until: str | None,
    now_ns: int | None = None,
    last: str = LAST,
) -> Window:
    """Return the window that --since and --until name; without them, the whole recording. `last` is
    SQL for the time of the newest relevant row."""
    start = min(session.start_wall_ns for session in recording.sessions)
    end = _find_end(recording, time.time_ns() if now_ns is None else now_ns, last)
    window = Window(
        start - 1 if since is None else parse_moment(since, start, end),
        end if until is None else parse_moment(until, start, end),
    )
    if (since or until) and window.since_ns >= window.until_ns:
        raise ConfigError(
            f"--since {since or 'the start'} is not before --until {until or 'the end'}"
        )
    return window


def parse_moment(text: str, start_ns: int, end_ns: int) -> int:
    """Return the moment that a text names: before the end, after the start, or a date."""
    word = text.strip()
    try:
        if word.startswith("+"):
            return start_ns + _parse_ns(word[1:])
        try:
            return end_ns - _parse_ns(word)
        except (KeyError, ValueError):
            return _parse_date(word)
    except (KeyError, ValueError, OverflowError):
        raise ConfigError(f"{text!r} is not a time; write {_FORMS}") from None


def _parse_ns(text: str) -> int:
    seconds = settings.parse_duration(text)
    if not seconds >= 0:
        raise ValueError
    return round(seconds * 1e9)


def _parse_date(text: str) -> int:
    # Python 3.10 does not understand the Z that everyone writes.
    stamp = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=datetime.timezone.utc)  # UTC, as every `ts` is shown
    since = stamp - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000


def _find_end(recording: Recording, now_ns: int, last: str) -> int:
    """Return now while a process runs, else the time of the last row."""
    if any(session.find_state() == "running" for session in recording.sessions):
        return now_ns
    last_us = recording.query(last)["us"][0].as_py()
    return now_ns if last_us is None else last_us * 1000 + 999
