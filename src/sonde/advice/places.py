"""Where the time went: the places that make it up, what was measured there, and what people do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sonde.advice.device_places import mark_device
from sonde.advice.period import Period
from sonde.analysis.awaits import Await, make_inside, read_awaits
from sonde.analysis.code_names import OPERATORS, is_mine, shorten_file
from sonde.analysis.code_tree import OUTSIDE, CodeTree, read_tree
from sonde.analysis.hot_places import HotPlace, list_places
from sonde.analysis.profile import Profile, ProfileFrame, Selection
from sonde.analysis.window import Window
from sonde.analysis.work_kinds import find_instead, find_kind
from sonde.errors import Error
from sonde.store.held import HeldRecording
from sonde.words import shorten_func, show_duration

# A loop beside the main thread that runs nothing, as in Gunicorn's master, is no answer.
_LOOPS = """
SELECT SUM(idle_ns) AS idle_ns FROM (
    SELECT SUM(idle_ns) AS idle_ns FROM python.event_loop WHERE {inside}
    GROUP BY host, pid, thread HAVING SUM(callbacks) > 0 OR thread = pid)
"""
# A thread that wakes and waits anew begins another row: the first row of each wait is one sample.
# So is the rest of a wait that two samples saw, which only longer waits can be told from; and
# whoever waits for the GIL right after a wait, at the same place, has not begun another one.
# The stacks come as one text: to plan VALUES of a thousand rows takes longer than to answer.
_FACTS = """
WITH wanted AS MATERIALIZED (
  SELECT word[1]::INT AS place, word[2]::HUGEINT AS stack, word[3]::BOOLEAN AS is_waiting
  FROM (SELECT string_split(unnest(string_split('{wanted}', ';')), ' ') AS word)),
seen AS (
  SELECT place, host, pid, thread, t_ns, wall_ns, wait, is_waiting, gil,
         LEAST({last}, (epoch_us(ts) - {start_us}) * {parts} // {length_us})::INT AS part, samples
  FROM python.stack_sample JOIN wanted USING (stack)
  WHERE {inside} AND is_waiting = (idle OR COALESCE(call, '') = 'time.sleep')),
begun AS (
  SELECT *, samples = 1 AND NOT (COALESCE(wait, '') = 'gil'
              AND COALESCE(LAG(t_ns) OVER one = t_ns - wall_ns, FALSE)) AS is_new
  FROM seen WHERE is_waiting WINDOW one AS (PARTITION BY place, host, pid, thread ORDER BY t_ns)),
numbered AS (
  SELECT place, host, pid, thread, wall_ns, samples,
         SUM(is_new::INT) OVER (PARTITION BY place, host, pid, thread ORDER BY t_ns) AS number
  FROM begun),
single AS (
  SELECT place, SUM(wall_ns)::DOUBLE AS wall_ns, SUM(samples) AS samples FROM numbered
  GROUP BY place, host, pid, thread, number),
length AS (
  SELECT place, COUNT(*) AS waits, QUANTILE_CONT(wall_ns, [0.2, 0.5, 0.8]) AS lengths_ns,
         MEDIAN(samples) AS samples
  FROM single GROUP BY place),
whole AS (
  SELECT place, [{sums}] AS parts_ns,
         COALESCE(SUM(wall_ns) FILTER (NOT gil), 0) / SUM(wall_ns) AS free,
         COUNT(DISTINCT (host, pid)) AS processes, COUNT(DISTINCT (host, pid, thread)) AS threads,
         ANY_VALUE(host) AS host, ANY_VALUE(pid) AS pid
  FROM seen GROUP BY place),
kind AS (
  SELECT place, ARG_MAX(wait, wall_ns) AS wait
  FROM (SELECT place, wait, SUM(wall_ns) AS wall_ns FROM seen GROUP BY ALL) GROUP BY place)
SELECT * FROM whole JOIN kind USING (place) LEFT JOIN length USING (place)
"""
_MOST_STACKS = 200  # of a place, the heaviest, that are looked at
_FEWEST_WAITS = 10
_FEWEST_SAMPLES = 4  # of a usual wait, from which on waits can be counted
_FEWEST_OTHERS = 2  # processes that work alike, from which on one that differs is told
_GROWN, _GROWN_PCT = 2.0, 20.0  # times as much at the end, and so many points of the time more
_PARTS = 6  # of the time, for what grows
_BEGINS = 0.85  # of the growth, in two parts side by side: it has begun, or become another phase
_SUM = "COALESCE(SUM(wall_ns) FILTER (part = {}), 0)::DOUBLE"
_FREE = 0.5  # of a line's own work that is done without the GIL: Python itself never works so
_DEEP = 5  # frames of one function in a stack, from which it calls itself
# How long a wait for a delayed acknowledgement usually lasts, in Linux, and how far single ones may
# be from that: when they begin and end is known to a sample.
_ACK_NS, _ACK_ERROR_NS = (40e6, 48e6), 14e6
_NO_DELAY = (
    "each of these waits is as long as a delayed acknowledgement (40 ms): send a message with one "
    "call (header and body together; sendall of both, a buffered writer that is flushed once), or "
    "set TCP_NODELAY on the socket that writes, on both sides"
)
_LOCKED = (
    "tasks stand in line here: whoever is let in awaits something while all others wait. Hold a "
    "lock only around what must not overlap, not around a request; have one lock for each key, or "
    "a pool of connections; raise the number of a semaphore as far as the other side allows"
)
_IN_TURN = (
    "one at a time: if one of these waits does not need the result of another, begin them "
    "together and await all (asyncio.gather, TaskGroup, as_completed), with a Semaphore against "
    "too many at once"
)
_RECURSION = (
    "it calls itself: if it is asked the same again, keep the answers (functools.lru_cache), or "
    "build them from the bottom up; cut off early what cannot win"
)
_GROWS = (
    "it takes more and more: see what has grown (a list, a text, a table, hooks) and is gone "
    "through again each time"
)
_FULL_QUEUE = (
    "a queue is full: whoever takes from it is too slow for those who put in. See what it awaits "
    "or works on for each item, let several take from the queue at the same time, or do many items "
    "at once; a longer queue only hides it"
)
_THREADS = (
    "tasks wait for threads: asyncio.to_thread has as many as there are processors, and four "
    "more (32 at most), for the whole program. Where more tasks wait than that, each waits for "
    "others to be done: give long calls an executor of their own (run_in_executor with a "
    "ThreadPoolExecutor that is large enough), so that short ones need not stand behind them, or "
    "use an asynchronous client"
)
_FULL = ("room in a queue", "the items of a queue to be done")
_LINES = ("a lock", "a semaphore", "a condition")
_MOST_AWAITS = 4
_MANY_TASKS = 4  # at a time, from which they may be more than the threads
_HANDED, _POOL, _CROWD = "asyncio.to_thread", "/concurrent/futures/thread.py", 1.5
_FETCH, _FORWARD = "/torch/utils/data/_utils/fetch.py", "/torch/nn/modules/module.py"
_EACH_ITEM = (
    "this is done for each item, and anew in each epoch: what is the same for all items or each "
    "time (statistics, files, tokens, what is decoded), do once, in __init__ or in advance"
)
_EACH_PASS = (
    "this is done in each forward pass: what does not depend on the input (masks, positions, "
    "tables), make once (register_buffer); the rest, with operations on whole tensors"
)


def find_places(recording: HeldRecording, period: Period) -> list[HotPlace]:
    """Return where the time went: whoever asks has a reason to, even if no rule found anything."""
    window = Window(*period.shown_ns)
    profile = Profile(recording, Selection(window))
    rows = recording.query(_LOOPS.format(**period.words)).to_pylist()
    # What the loop of a notebook's kernel waits for is its user.
    loops_ns = 0 if _are_kernels(recording) else int(rows[0]["idle_ns"] or 0)
    try:
        tree = read_tree(profile, hot_calls=OUTSIDE)
    except Error:  # nothing was sampled
        return []
    awaits = read_awaits(recording, make_inside(window), profile.make_owner()) if loops_ns else []
    if awaits:  # the rest of its time, a server's loop has nothing to do
        loops_ns = min(loops_ns, int(sum(one.awaited_ns for one in awaits)))
    whole_ns = tree.root.total_ns + loops_ns
    awaited = list(_list_awaits(awaits, window, loops_ns, whole_ns, profile.folder))
    places = list_places(tree, loops_ns=loops_ns, awaited=awaited)
    depths = _find_depths(tree, places)
    facts, alike = _read_facts(recording, window, places), _count_alike(tree)
    told = [
        _describe(place, facts[at], depths.get(at, 0), window, alike) if at in facts else place
        for at, place in enumerate(places)
    ]
    handed_ns = sum(one.awaited_ns for one in awaits if one.awaited == _HANDED)
    tasks = handed_ns / (window.until_ns - window.since_ns)
    told = [
        _tell_crowd(place, facts[at]["threads"], tasks, tree) if at in facts else place
        for at, place in enumerate(told)
    ]
    told = mark_device(recording, period.find_words("some")["inside"], told)
    return [_tell_repeated(place, tree) if place.state == "working" else place for place in told]


def _are_kernels(recording: HeldRecording) -> bool:
    return all(
        any("ipykernel" in str(word) for word in one.meta.argv) for one in recording.sessions
    )


# ---- threads -------------------------------------------------------------------------------------


def _list_stacks(place: HotPlace) -> list[int]:
    return sorted(place.stacks, key=lambda stack: -place.stacks[stack])[:_MOST_STACKS]


def _read_facts(
    recording: HeldRecording, window: Window, places: Sequence[HotPlace]
) -> dict[int, Any]:
    """Return what was measured at each place, by its number."""
    wanted = [
        f"{at} {stack} {place.state == 'waiting'}"
        for at, place in enumerate(places)
        for stack in _list_stacks(place)
    ]
    if not wanted:
        return {}
    sql = _FACTS.format(
        wanted=";".join(wanted), inside=make_inside(window), start_us=window.since_ns // 1000,
        length_us=max(1, (window.until_ns - window.since_ns) // 1000),
        parts=_PARTS, last=_PARTS - 1, sums=", ".join(map(_SUM.format, range(_PARTS))),
    )  # fmt: skip
    return {row["place"]: row for row in recording.query(sql).to_pylist()}


def _find_depths(tree: CodeTree, places: Sequence[HotPlace]) -> dict[int, int]:
    """Return how often the function of a place is in its usual stack, by the place's number."""
    found = {}
    for at, place in enumerate(places):
        depths: dict[int, int] = {}
        for stack in _list_stacks(place):
            same = sum(
                1 for one in tree.frames.get(stack, ())
                if one.file == place.file and shorten_func(one.func) == place.func
            )  # fmt: skip
            depths[same] = depths.get(same, 0) + place.stacks[stack]
        found[at] = max(depths, key=depths.__getitem__, default=0)
    return found


def _count_alike(tree: CodeTree) -> dict[tuple[str, int], int]:
    """Return how many processes did the same work as each one, with itself: those that worked and
    were started by the same process with the same command, as the workers of a server."""
    sessions = tree.profile.recording.sessions
    at_work = [sessions[part] for part in {part for part, _thread in tree.root.threads}]
    teams = {
        (one.host, one.pid): (one.host, getattr(one.meta, "ppid", None), tuple(one.meta.argv))
        for one in at_work
    }
    return {who: list(teams.values()).count(team) for who, team in teams.items()}


def _describe(
    place: HotPlace, row: Any, depth: int, window: Window, alike: Mapping[tuple[str, int], int]
) -> HotPlace:
    if place.state == "working" and not place.call and row["free"] >= _FREE:
        place = replace(place, call=OPERATORS, kind=find_kind(OPERATORS))
    is_own = is_mine(place.file)  # else a library's, which nothing of it has called
    facts, instead = [], find_instead(
        place.call, row["wait"], is_waiting=place.state == "waiting", is_own=is_own
    )  # fmt: skip
    if depth >= _DEEP and place.state == "working":
        facts.append(f"calls itself, {depth} deep")
        instead = _RECURSION
    part_ns = (window.until_ns - window.since_ns) / _PARTS * row["threads"]
    grown = _describe_growth([100 * ns / part_ns for ns in row["parts_ns"]])
    if grown:
        facts.append(grown)
        instead = f"{_GROWS}; {instead}" if instead else _GROWS
    is_counted = (row["waits"] or 0) >= _FEWEST_WAITS and row["samples"] >= _FEWEST_SAMPLES
    if place.state == "waiting" and is_counted:
        low_ns, usual_ns, high_ns = row["lengths_ns"]
        facts.append(f"{row['waits']:,} waits of {show_duration(usual_ns)}")
        is_ack = _ACK_NS[0] <= usual_ns <= _ACK_NS[1] and high_ns - low_ns <= 2 * _ACK_ERROR_NS
        instead = _NO_DELAY if row["wait"] == "network" and is_ack else instead
    if row["processes"] > 1:
        facts.append(f"in {row['processes']} processes")
    elif (others := alike.get((row["host"], row["pid"]), 1) - 1) >= _FEWEST_OTHERS:
        facts.append(f"only in process {row['pid']}, not in {others} others that work alike")
    elif row["threads"] > 1:
        facts.append(f"in {row['threads']} threads")
    return replace(place, facts=", ".join(facts), instead=instead)


def _describe_growth(shares_pct: Sequence[float]) -> str:
    """Return that a place takes more and more of the time; nothing if it has only begun to."""
    third = len(shares_pct) // 3
    first_pct, last_pct = fmean(shares_pct[:third]), fmean(shares_pct[-third:])
    if last_pct < max(_GROWN * first_pct, first_pct + _GROWN_PCT):
        return ""
    rise_pct = max(shares_pct) - shares_pct[0]
    steepest_pct = max(
        after - before for before, after in zip(shares_pct, shares_pct[2:], strict=False)
    )
    if steepest_pct >= _BEGINS * rise_pct:
        return ""
    return f"grows: {first_pct:.0f} % of the first third, {last_pct:.0f} % of the last"


def _tell_repeated(place: HotPlace, tree: CodeTree) -> HotPlace:
    """Add what people do about work that is done for each item of a dataset, or in each forward
    pass of a model by something else than operators."""
    stacks = [
        frames[:at] for frames in tree.frames.values()
        if (at := _find_frame(frames, place)) is not None
    ]  # fmt: skip
    for ending, words in ((_FETCH, _EACH_ITEM), (_FORWARD, _EACH_PASS)):
        within = sum(any(one.file.endswith(ending) for one in callers) for callers in stacks)
        is_model = ending == _FORWARD and "torch" in place.call + place.facts
        if 2 * within > len(stacks) and not is_model:
            return replace(place, instead=f"{words}; {place.instead}" if place.instead else words)
    return place


def _find_frame(frames: Sequence[ProfileFrame], place: HotPlace) -> int | None:
    """Return where the innermost call of the function of a place is in a stack, root first."""
    found = [
        at for at, one in enumerate(frames)
        if one.file == place.file and shorten_func(one.func) == place.func
    ]  # fmt: skip
    return found[-1] if found else None


def _tell_crowd(place: HotPlace, threads: int, tasks: float, tree: CodeTree) -> HotPlace:
    """Add that more tasks wait for the threads of asyncio's own pool than these are, at a place
    that keeps them all."""
    pooled = sum(
        wall_ns for stack, wall_ns in place.stacks.items()
        if any(one.file.endswith(_POOL) for one in tree.frames.get(stack, ()))
    )  # fmt: skip
    if tasks < _CROWD * threads or 2 * pooled <= sum(place.stacks.values()):
        return place
    words = f"{tasks:.1f} tasks at a time wait for threads of asyncio's pool"
    facts = f"{place.facts}, {words}" if place.facts else words
    return replace(place, facts=facts, instead=_THREADS)


# ---- tasks ---------------------------------------------------------------------------------------


def _list_awaits(
    found: Sequence[Await], window: Window, loops_ns: int, whole_ns: int, folder: str | None
) -> Iterator[HotPlace]:
    """Yield the places at which tasks waited while their event loops had nothing to do."""
    awaited_ns = sum(one.awaited_ns for one in found)
    for one in found[:_MOST_AWAITS]:
        time_ns = loops_ns * one.awaited_ns / awaited_ns
        tasks = one.awaited_ns / (window.until_ns - window.since_ns)
        facts = f"{tasks:.1f} tasks at a time" if tasks >= 1.05 else "one task at a time"
        if one.wait_ns is not None:
            facts += f", {show_duration(one.wait_ns)} each"
        yield HotPlace(
            one.func, one.file, one.line, one.awaited, one.words or find_kind(one.awaited),
            "waiting", round(time_ns / 1e9, 3), round(100 * time_ns / max(1, whole_ns), 1),
            _name_callers(one, folder), facts, _advise_await(one, tasks),
        )  # fmt: skip


def _name_callers(one: Await, folder: str | None) -> str:
    return " < ".join(
        f"{func} ({shorten_file(file, folder)}:{line})" for func, file, line in one.callers[:3]
    )


def _advise_await(one: Await, tasks: float) -> str:
    if one.words in _LINES and tasks >= 1.5:
        return _LOCKED
    if one.words in _FULL:
        return _FULL_QUEUE
    if one.awaited == _HANDED and tasks >= _MANY_TASKS:
        return _THREADS
    if one.awaited == "asyncio.sleep":
        return find_instead("", "sleep", is_waiting=True)
    # One that never ends is what the program is there for, as a server is.
    return _IN_TURN if tasks <= 1.5 and one.ended >= _FEWEST_WAITS else ""
