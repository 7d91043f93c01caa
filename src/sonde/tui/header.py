"""The lines above the table: the process, its use of the machine, and what sampling costs."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.session.ending import find_ending
from sonde.tui.process import TopProcess
from sonde.words import MISSING, count_things, show_bytes_short, show_duration_short


def describe_process(process: TopProcess) -> tuple[str, str]:
    """Return which process it is, and for how long it has run."""
    session = process.session
    meta = session.meta
    world = meta.world_size
    rank = "" if session.rank is None else f"  rank {session.rank}" + (f"/{world}" if world else "")
    left = f"pid {session.pid}{rank}  {session.host}  Python {meta.python}  "
    ending = None if process.is_live else find_ending(session)
    state = process.state if ending is None else ending.word
    return left + process.command, f"{state} {show_duration_short(process.age_s * 1e9)}"


def describe_use(process: TopProcess, window_s: float | None, width: int) -> str:
    """Return its CPU, memory, threads and GIL use; how it is sampled, and what that costs; in fewer
    words where there is no room."""
    usage, cost = process.read_usage(), process.find_cost_pct()
    cpu = MISSING if usage is None else f"{usage['user_pct'] + usage['system_pct']:.0f}%"
    rss = MISSING if usage is None else show_bytes_short(usage["rss_bytes"])
    threads = process.count_threads() if usage is None else usage["threads"]
    every = process.interval_s
    use = (
        f"CPU {cpu}",
        f"RSS {rss}",
        f"threads {threads:.0f}",
        f"GIL {process.find_gil_pct(window_s):.0f}%",
    )
    often = MISSING if every is None else _show_interval(every)
    price = f"sonde {MISSING if cost is None else f'{cost:.1f}%'}"
    text = "  ".join((*use, f"sampled every {often}", f"{price} of a core"))
    return text if len(text) <= width else "  ".join((*use, f"every {often}", price))


def describe_losses(losses: Sequence[str], width: int) -> str:
    """Return what was lost in one line, as far as there is room, and how much more there is."""
    for count in range(len(losses), 0, -1):
        more = len(losses) - count
        end = f"; {more} more (? lists them)" if more else ""
        text = f"lost: {'; '.join(losses[:count])}{end}"
        if len(text) <= width:
            return text
    return f"lost: {count_things(len(losses), 'thing')} (? lists them)" if losses else ""


def _show_interval(every_s: float) -> str:
    return f"{every_s * 1e3:g} ms" if every_s < 1 else f"{every_s:g} s"


def describe_end(process: TopProcess) -> str:
    """Return a note about a process that has ended; an empty text for one that runs."""
    if process.is_live:
        return ""
    ending = find_ending(process.session)
    how = "is on another machine, or gone" if ending is None else ending.sentence
    return f"process {process.session.pid} {how}; this is its last state"


def describe_reach(process: TopProcess, window_s: float | None) -> str:
    """Return a note if the samples do not reach back as far as the window."""
    oldest = process.samples.oldest_ns
    if window_s is None or oldest is None or oldest - process.find_since(window_s) < 2e9:
        return ""
    age_s = (process.find_since(window_s) + process.find_span(window_s) - oldest) / 1e9
    return f"the oldest sample kept is {age_s:.0f} s old"


def describe_tabs(processes: Sequence[TopProcess], current: int, width: int) -> list[str]:
    """Return one label per process; if not all fit, those around the current one."""
    words = [_name_tab(process) for process in processes]
    first, last = current, current + 1
    room = width - len(words[current]) - 8
    while first > 0 or last < len(words):
        grown = False
        for at in (last, first - 1):
            if 0 <= at < len(words) and not first <= at < last and len(words[at]) + 2 <= room:
                room -= len(words[at]) + 2
                first, last, grown = min(first, at), max(last, at + 1), True
        if not grown:
            break
    shown = [f"[{word}]" if at == current else f" {word} " for at, word in enumerate(words)]
    return [*(["… "] if first else []), *shown[first:last], *([" …"] if last < len(words) else [])]


def _name_tab(process: TopProcess) -> str:
    session = process.session
    name = f"pid {session.pid}" if session.rank is None else f"rank {session.rank}"
    return name if process.is_live else f"{name} {process.state}"
