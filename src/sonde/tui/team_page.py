"""Several processes on one screen: the sum of their functions, and who differs."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.tui.grid import cut
from sonde.tui.page import (
    SHARES,
    WEIGHT_WORDS,
    Choice,
    Page,
    arrange,
    list_own_shares,
    make_share,
    measure,
    show_window,
)
from sonde.tui.process import TopProcess
from sonde.tui.team import find_members, sum_shares
from sonde.tui.tree import Unit
from sonde.words import MISSING, count_things, shorten_func, show_bytes_short, show_duration_short

_LEAST = 12  # columns of a name
_MOST_NAMED = 3  # processes that differ, above the table


def choose_live(processes: Sequence[TopProcess]) -> Sequence[TopProcess]:
    """Return the processes that run; all of them if none does."""
    return [one for one in processes if one.is_live] or processes


def make_team_page(choice: Choice, processes: Sequence[TopProcess]) -> Page:
    """Return the functions or lines of all live processes, added up."""
    live = choose_live(processes)
    found, whole = sum_shares(live, choice)
    rows = [
        make_share(live[0], share, whole, show_duration_short(share.self_ns), share.self_ns)
        for share in found
    ]
    parts = (choice.view, WEIGHT_WORDS[choice.weight], f"the sum of {len(live)} processes",
             show_window(choice.window_s))  # fmt: skip
    note = "" if rows else "every thread is idle: i shows what they wait for"
    return arrange(Page(" · ".join(parts), SHARES, rows, 0, note), choice)


def describe_team(processes: Sequence[TopProcess], window_s: float | None, width: int) -> list[str]:
    """Return what all live processes use together, if any is live, and a line for each that differs
    from the others, the most first. Where there is no room, the name of the function is cut."""
    live = choose_live(processes)
    name = live[0].session.meta.job or live[0].command
    count = count_things(len(live), "process")
    # The last readings of processes that have ended are of different times: no sum of them is true.
    uses = _sum_usage(live) if live[0].is_live else "all have ended"
    lines = [f"{name}  {count}  {uses}"]
    members = [one for one in find_members(live, window_s) if one.unit is not None]
    for member in sorted(members, key=lambda one: -one.more_pct)[:_MOST_NAMED]:
        session, unit = member.process.session, member.unit
        who = f"pid {session.pid}" if session.rank is None else f"rank {session.rank}"
        if unit is not None:
            begin = f"{who} differs: {member.more_pct:+.0f} % of the time in "
            place = f" ({unit.show_place(member.process.folder)})"
            room = max(_LEAST, width - len(begin) - len(place))
            func = shorten_func(unit.func)
            lines.append(begin + cut(func, min(room, len(func))) + place)
    return lines


def _sum_usage(live: Sequence[TopProcess]) -> str:
    used = [use for use in (one.read_usage() for one in live) if use is not None]
    cpu = f"{sum(u['user_pct'] + u['system_pct'] for u in used):.0f}%" if used else MISSING
    rss = show_bytes_short(sum(u["rss_bytes"] for u in used)) if used else MISSING
    return f"CPU {cpu}  RSS {rss}  threads {sum(one.count_threads() for one in live)}"


def describe_team_losses(processes: Sequence[TopProcess]) -> list[str]:
    """Return a line if samples of some processes are missing."""
    count = sum(bool(one.list_misses()) for one in choose_live(processes))
    return (
        [f"lost: samples of {count_things(count, 'process')}: enter shows which"] if count else []
    )


def find_most(processes: Sequence[TopProcess], choice: Choice, unit: Unit) -> int:
    """Return the place of the process in which a function or line takes the most time."""
    live = choose_live(processes)

    def time_in(process: TopProcess) -> int:
        found = list_own_shares(choice, measure(choice, process)) if process in live else []
        return next((share.total_ns for share in found if share.unit == unit), -1)

    return max(range(len(processes)), key=lambda at: time_in(processes[at]))
