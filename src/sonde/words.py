"""Numbers and names as people read them: times, sizes, percents, bars and cleaned names."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MISSING = "\N{EN DASH}"
WORKER = "(multiprocessing)"  # the command of a process that multiprocessing has started
_DURATIONS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))
_COUNTS = (("G", 10**9), ("M", 10**6), ("k", 10**3))
_EXACT = 2**53  # every whole number below it is a float
_EIGHTHS = " ▏▎▍▌▋▊▉"
_HEIGHTS = "▁▂▃▄▅▆▇█"

# ---- times ---------------------------------------------------------------------------------------


def show_duration(time_ns: float) -> str:
    """Return a duration with three significant digits: `12.3 ms`, `1.50 s`, `90 ns`; from a minute
    on as people say it: `1m16s`, `3h07m`."""
    if time_ns >= 59.95e9:  # what would be shown as 60.0 s
        return _show_minutes(time_ns)
    for unit, size in _DURATIONS:
        if time_ns >= 0.9995 * size:  # 999.9 µs is 1.00 ms
            value = time_ns / size
            return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
    return f"{time_ns:.0f} ns"


def show_duration_short(time_ns: float) -> str:
    """Return a duration in at most seven characters: `431ms`, `12.3s`, `3h07m`."""
    if time_ns < 1e9:
        return f"{time_ns / 1e6:.0f}ms"
    return f"{time_ns / 1e9:.1f}s" if time_ns < 59.95e9 else _show_minutes(time_ns)


def _show_minutes(time_ns: float) -> str:
    minutes, seconds = divmod(round(time_ns / 1e9), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def show_moment(wall_ns: int) -> str:
    """Return a moment, in nanoseconds since 1970, as UTC: `2030-01-31T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ns // 10**9))


# ---- amounts -------------------------------------------------------------------------------------


def show_bytes(count: float | None, per: str = "") -> str:
    """Return a size with its unit: `1.5 KiB`; `per` makes it a rate: `1.5 KiB/s`."""
    if count is None:
        return MISSING
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}{per}"


def show_bytes_short(count: float) -> str:
    """Return a size in at most five characters: `45M`, `1.5G`."""
    for unit in "KMG":
        count /= 1024
        if count < 1000 or unit == "G":
            break
    return f"{count:.1f}{unit}" if count < 10 else f"{count:.0f}{unit}"


def show_count(count: int | None) -> str:
    """Return a large number with three significant digits: `470 k`; nothing for none."""
    if not count:
        return ""
    for unit, size in _COUNTS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def show_number(value: float) -> str:
    """Return a whole number with all its digits, another number with six."""
    if -_EXACT < value < _EXACT and value == int(value):
        return f"{int(value):,}"
    return f"{value:.6g}"


def find_pct(part: float, whole: float) -> float:
    """Return a part in percent of the whole; of nothing, everything is 0 %."""
    return 100 * part / whole if whole else 0.0


def show_pct(percent: float | None) -> str:
    """Return `43.2 %`."""
    return MISSING if percent is None else f"{percent:.1f} %"


def show_share(part: float, whole: float) -> str:
    """Return a part in percent, without the sign: `43.2`; a share of nothing is a dash."""
    return f"{100 * part / whole:.1f}" if whole else MISSING


def show_ranges(numbers: Iterable[int], most: int = 6) -> str:
    """Return whole numbers as ranges, `0-16, 18`; of more than `most` of them, the first and the
    last."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in found]
    return ", ".join(shown if len(shown) <= most else [*shown[: most - 1], "…", shown[-1]])


def count_things(count: int, thing: str) -> str:
    """Return `1 rank`, `1,023 ranks`, `2 processes`."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}" + ("es" if thing.endswith("s") else "s")


# ---- drawings ------------------------------------------------------------------------------------


def show_bar(part: float, whole: float, width: int) -> str:
    """Return a share as a bar, exact to an eighth of a character."""
    eighths = round(8 * width * part / whole) if whole else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def show_curve(values: list[float | None]) -> str:
    """Return values over time as bars of eight heights, from the least to the greatest."""
    known = [value for value in values if value is not None and abs(value) < float("inf")]
    if not known:
        return ""
    low, size = min(known), max(known) - min(known)
    return "".join(
        _HEIGHTS[int(7 * (value - low) / size) if size > 0 else 0] if value in known else " "
        for value in values
    )


# ---- names ---------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Escape what a terminal or a file of lines must not get: line breaks, escape sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def make_utf8(value: object) -> object:
    """Escape what UTF-8 cannot hold of a text: a word of a command line may be any bytes."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def name_program(argv: object) -> str:
    """Return what people call a program: the script or module, without folder and interpreter."""
    words = [str(word) for word in argv] if isinstance(argv, list) else []
    first = os.path.basename(words[0]) if words else "python"
    if not first.startswith("python"):
        return first
    rest = iter(words[1:])
    for word in rest:
        if word in ("-W", "-X"):
            next(rest, None)
        elif word == "-m":
            return next(rest, word)
        elif word == "-c" or not word.startswith("-"):
            return os.path.basename(word) or word
    return first


# The user may have a folder of this name, too: ours is where packages are, or where this file is.
_HERE = "".join(c if c.isalnum() else f"\\{c}" for c in os.path.dirname(__file__))
OURS = (
    rf"(?:.*/(?:(?:site|dist)-packages|src)/sonde|{_HERE})/"
    r"(?:(?:job|session|tables|profiler|integrations)/|\w+\.py$)"
)
# Where libraries and Python's own modules lie.
PACKAGES = r".*/(?:site|dist)-packages/"
STANDARD = r".*/lib(?:64)?/python3(?:\.\d+t?)?/(?:lib-dynload/)?|.*/python3\d+\.zip/"


def shorten_file(file: str, folder: str | None = None) -> str:
    """Return a path as people say it: `fastapi/routing.py`, `json/encoder.py`, and a file of the
    user's own from `folder` on, where the program began."""
    import re  # slow to import, and the job seldom shows anything

    for known in (PACKAGES, STANDARD):
        if (found := re.match(known, file)) is not None:
            return file[found.end() :]
    if (frozen := re.match(r"<frozen ([\w.]+)>", file)) is not None:
        return f"{frozen[1].replace('.', '/')}.py{file[frozen.end() :]}"
    if folder and file.startswith(folder.rstrip("/") + "/"):
        return file[len(folder.rstrip("/")) + 1 :]
    parts = file.split("/")
    return "/".join(parts[-2:]) if len(parts) > 3 else file


_FLAGS = ("-u", "-B", "-E", "-I", "-O", "-OO", "-P", "-s", "-S", "-v")  # of Python, without a value


def shorten_func(func: str) -> str:
    """Return a function inside of a function as people call it: `handle.<genexpr>` for
    `handle.<locals>.<genexpr>`."""
    return func.replace(".<locals>", "")


def shorten_command(command: str) -> str:
    """Return a command without its interpreter and without the folder of its program: that is the
    same for many, and stands where the difference would be."""
    if "from multiprocessing.spawn" in command or "from multiprocessing.forkserver" in command:
        return WORKER
    first, _, rest = command.partition(" ")
    first = os.path.basename(first)
    while first.startswith("python") and rest.partition(" ")[0] in _FLAGS:
        rest = rest.partition(" ")[2]
    command = f"{first} {rest}".strip()
    if not first.startswith("python") or not rest or rest.startswith("-"):
        return command
    program, _, words = rest.partition(" ")
    return f"{os.path.basename(program)} {words}".strip()
