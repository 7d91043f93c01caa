"""The contents of the screen before it is drawn: columns and rows of each view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sonde.tui import shares
from sonde.tui.process import LONGEST_S, TopProcess
from sonde.tui.shares import Branch, Load, Share, Weighed
from sonde.tui.tree import OURS, StackTree, Unit, Units
from sonde.words import MISSING, shorten_func, show_bytes_short, show_duration_short, show_share

VIEWS = ("functions", "lines", "threads", "stacks", "processes")
WINDOWS_S = (1.0, 5.0, 15.0, 60.0, 300.0, None)  # None is since the start


def show_window(window_s: float | None) -> str:
    """Return `last 5 s`, `last 5 min` or `since start`."""
    if window_s is None:
        return "since start"
    return f"last {window_s:g} s" if window_s < 60 else f"last {window_s / 60:g} min"


class PageColumn(NamedTuple):
    """A column: `width` cells wide, or with a share of the rest if that is 0."""

    title: str
    width: int = 0
    right: bool = False
    cut_left: bool = False  # the end of a path says most
    descends: bool = False  # the largest first


class PageRow(NamedTuple):
    """A row: what it is about, the values to sort by, and the cells to show."""

    key: object
    values: Sequence[Any]
    cells: Sequence[str]
    share: float = 0.0  # of the whole, for the bar
    loud: bool = False


@dataclass(frozen=True)
class Choice:
    """What the user has chosen to see."""

    view: str = "functions"
    weight: str = "wall"
    window_s: float | None = 5.0
    idle: bool = False
    filter: str = ""
    thread: int | None = None  # show only this thread
    unit: Unit | None = None  # show its callers and callees
    everyone: bool = False  # all processes as one, where there are several
    sort: dict[str, tuple[int, bool]] = field(default_factory=dict)  # view: column, reversed

    @property
    def shown(self) -> str:
        """The name of the view, or `calls` for the calls of a unit."""
        return "calls" if self.unit is not None else self.view

    def find_order(self) -> tuple[int, bool] | None:
        """Return the column to sort by and whether it is reversed; None leaves rows as they are."""
        fixed = None if self.shown in ("calls", "stacks") else (0, False)
        return self.sort.get(self.shown, fixed)

    def sort_by(self, column: int | None) -> Choice:
        """Return the choice sorted by another column; None reverses the order."""
        if self.shown == "stacks":
            return self  # a tree has only one order
        now, turned = self.find_order() or (1, False)
        new = (now, not turned) if column is None else (column, False)
        return replace(self, sort={**self.sort, self.shown: new})


class Page(NamedTuple):
    """A table with its title and a note."""

    title: str
    columns: Sequence[PageColumn]
    rows: list[PageRow]
    whole: int  # number of rows before the filter
    note: str = ""


def _pct(title: str, width: int = 6) -> PageColumn:
    return PageColumn(title, width, right=True, descends=True)


_WHERE = (PageColumn("function"), PageColumn("where", cut_left=True))
SHARES = (_pct("self%"), _pct("total%", 7), PageColumn("self", 7, True, descends=True), *_WHERE)
_CALLS = (_pct("self%"), _pct("total%", 7), PageColumn("", 7), *_WHERE)
_THREADS = (
    _pct("busy%"), _pct("CPU%"), _pct("GIL%"), PageColumn("now", 7),
    PageColumn("thread", cut_left=True),  # names often differ in the number at their end
    PageColumn("in"), PageColumn("at", cut_left=True),
)  # fmt: skip
_STACKS = (PageColumn("stack"), PageColumn("where", cut_left=True))
_PROCESSES = (
    PageColumn("rank", 5, True), PageColumn("pid", 7, True), PageColumn("state", 7),
    _pct("CPU%", 5), PageColumn("RSS", 5, True, descends=True), _pct("GIL%", 5),
    PageColumn("main in"), PageColumn("at", cut_left=True),
)  # fmt: skip


def make_page(choice: Choice, process: TopProcess, processes: Sequence[TopProcess]) -> Page:
    """Return the table that a choice shows."""
    if choice.view == "processes":
        page = _make_processes(choice, processes)
    elif choice.view == "threads":
        page = _make_threads(choice, process)
    elif choice.view == "stacks":
        return _make_stacks(choice, process)
    elif choice.unit is not None:
        page = _make_calls(choice, process)
    else:
        page = _make_shares(choice, process)
    return arrange(page, choice)


def arrange(page: Page, choice: Choice) -> Page:
    """Return a page filtered and sorted."""
    wanted = choice.filter.casefold()
    rows = [row for row in page.rows if wanted in " ".join(row.cells).casefold()]
    order = choice.find_order()
    if order is None:
        return page._replace(rows=rows, whole=len(page.rows))
    at, turned = min(order[0], len(page.columns) - 1), order[1]
    rows.sort(key=lambda row: tuple(row.cells[-2:]))
    if page.columns[1].descends:  # by total: of equal self times, outer functions come first
        rows.sort(key=_by(1), reverse=True)
    rows.sort(key=_by(at), reverse=page.columns[at].descends != turned)
    return page._replace(rows=rows, whole=len(page.rows))


def _by(at: int) -> Callable[[PageRow], Any]:
    """Return a sort key: missing values are the smallest, texts ignore case."""

    def key(row: PageRow) -> Any:
        value = row.values[at]
        if isinstance(value, str):
            return value.casefold()
        return float("-inf") if value is None else value

    return key


# ---- functions and lines --------------------------------------------------------------------


def measure(choice: Choice, process: TopProcess) -> Weighed:
    """Return the process's tree with the weight that a choice asks for."""
    thread, window_s = choice.thread, choice.window_s
    if window_s is None and thread is not None:
        window_s = LONGEST_S  # python.stack does not distinguish threads
    return process.weigh(window_s, choice.weight, idle=choice.idle, thread=thread)


def units_of(choice: Choice, tree: StackTree) -> Units:
    """Return functions or lines, as the view needs; an import is one of them."""
    return tree.folded_lines if choice.view == "lines" else tree.folded


def list_own_shares(choice: Choice, weighed: Weighed) -> list[Share]:
    """Return the shares of functions or lines; those of sonde itself are nobody's question."""
    found = shares.list_shares(weighed, units_of(choice, weighed.tree))
    return [share for share in found if share.unit != OURS]


def _make_shares(choice: Choice, process: TopProcess) -> Page:
    weighed = measure(choice, process)
    rows = [
        make_share(process, share, weighed.whole, show_duration_short(share.self_ns), share.self_ns)
        for share in list_own_shares(choice, weighed)
    ]
    note = "" if rows else _explain_nothing(choice, process)
    return Page(_make_title(choice, process), SHARES, rows, 0, note)


def make_share(process: TopProcess, share: Share, whole: int, third: str, value: object) -> PageRow:
    """Return the row of a function or a line."""
    unit = share.unit
    cells = (
        show_share(share.self_ns, whole), show_share(share.total_ns, whole), third,
        shorten_func(unit.func),
        unit.show_place(process.folder),
    )  # fmt: skip
    values = (share.self_ns, share.total_ns, value, unit.func, (unit.file, unit.line))
    return PageRow(unit, values, cells, share.self_ns / whole if whole else 0.0)


def _make_title(choice: Choice, process: TopProcess) -> str:
    parts = [choice.view, WEIGHT_WORDS[choice.weight]]
    window_s = choice.window_s
    if choice.weight == "wall":
        parts.append(_describe_idle(choice, process))
    if choice.thread is not None:
        parts.append(f"thread {choice.thread}")
        window_s = window_s or LONGEST_S  # python.stack does not distinguish threads
    parts.append(show_window(window_s))
    return " · ".join(filter(None, parts))


WEIGHT_WORDS = {"wall": "wall time", "cpu": "CPU time", "gil": "GIL held"}


def _describe_idle(choice: Choice, process: TopProcess) -> str:
    if choice.idle:
        return "with idle" if choice.window_s is not None or choice.thread is not None else ""
    if choice.window_s is None and choice.thread is None and not process.is_short:
        whole = process.weigh(None, "wall", idle=True).whole
        idle_ns = whole - process.weigh(None, "wall", idle=False).whole
        return f"{show_share(idle_ns, whole)}% idle hidden" if idle_ns > 0 else "with idle"
    sums = process.add_up(choice.window_s or LONGEST_S)
    mine = [(key[3], s[1]) for key, s in sums.items() if choice.thread in (None, key[0])]
    idle_ns, wall_ns = sum(wall for idle, wall in mine if idle), sum(wall for _, wall in mine)
    return f"{show_share(idle_ns, wall_ns)}% idle hidden" if idle_ns else ""


def _explain_nothing(choice: Choice, process: TopProcess) -> str:
    """Return why there is nothing to see, and what to do."""
    if process.state == "paused":
        return f"recording is paused: `sonde resume {process.session.pid}` goes on"
    if choice.window_s is not None and process.add_up(choice.window_s):
        if choice.weight == "gil":
            return "nothing held the GIL"
        if choice.weight == "cpu":
            return "no thread used the CPU: w shows wall time"
        return "every thread is idle: i shows what they wait for"
    if process.samples.newest_ns is None:
        return "no stack has been sampled: `sonde query … sonde.source` says why"
    every_s = process.interval_s or 0
    seldom = f", one every {every_s:g} s" if every_s > (choice.window_s or 0) else ""
    return f"no sample in this window{seldom}: + widens it"


def _make_calls(choice: Choice, process: TopProcess) -> Page:
    assert choice.unit is not None
    weighed = measure(choice, process)
    units = units_of(choice, weighed.tree)
    number = units.find(choice.unit)
    title = f"calls of {shorten_func(choice.unit.func)} · {_make_title(choice, process)}"
    if number is None:
        return Page(title, _CALLS, [], 0, "it was not seen in this window")
    mine = [share for share in shares.list_shares(weighed, units) if share.unit == choice.unit]
    parts = (
        ("caller", shares.list_callers(weighed, units, number)),
        ("itself", mine),
        ("callee", shares.list_callees(weighed, units, number)),
    )
    rows = [
        make_share(process, share, weighed.whole, word, word)._replace(loud=word == "itself")
        for word, found in parts
        for share in sorted(found, key=lambda share: -share.total_ns)
    ]
    return Page(title, _CALLS, rows, 0, "" if rows else "it was not seen in this window")


# ---- threads and stacks -----------------------------------------------------------------------


def name_thread(load: Load) -> str:
    """Return the name of a thread in Python, or its number."""
    return load.name or f"thread {load.thread}"


def _make_threads(choice: Choice, process: TopProcess) -> Page:
    window_s = choice.window_s or LONGEST_S  # python.stack does not distinguish threads
    span = process.find_span(window_s)
    rows = []
    for load in process.list_loads(window_s):
        unit = process.tree.by_line.names[process.tree.by_line.of[load.place]]
        times = (load.busy_ns, load.cpu_ns, load.gil_ns)
        name, where = name_thread(load), unit.show_place(process.folder)
        func = shorten_func(unit.func)
        cells = (*(show_share(t, span) for t in times), load.now, name, func, where)
        rows.append(PageRow(load.thread, (*times, load.now, name, unit.func, where), cells))
    title = f"threads · share of the window · {show_window(window_s)}"
    return Page(title, _THREADS, rows, 0, "" if rows else _explain_nothing(choice, process))


def _make_stacks(choice: Choice, process: TopProcess) -> Page:
    loads = process.list_loads(choice.window_s or LONGEST_S)
    wanted = choice.filter.casefold()
    if wanted:
        loads = [load for load in loads if wanted in _describe_stack(process, load)]
    root = shares.grow_branches(process.tree, sorted(loads))
    rows = list(_list_branches(process, root, "", ""))
    count = sum(load.now != "ended" for load in loads)
    title = f"stacks of {count} threads, now" if process.is_live else "the last stacks"
    note = "" if rows else _explain_nothing(choice, process)
    return Page(title, _STACKS, rows, len(rows), note)


def _describe_stack(process: TopProcess, load: Load) -> str:
    tree = process.tree
    names = [tree.by_line.names[tree.by_line.of[place]] for place in tree.walk(load.place)]
    places = (f"{shorten_func(unit.func)} {unit.show_place(process.folder)}" for unit in names)
    words = [name_thread(load), *places]
    return "\n".join(words).casefold()


def _list_branches(process: TopProcess, branch: Branch, first: str, rest: str) -> Iterator[PageRow]:
    """Yield frames under their callers, indented further only where stacks part."""
    units = process.tree.by_line
    while True:
        if branch.place >= 0:
            unit = units.names[units.of[branch.place]]
            cells = first + shorten_func(unit.func), unit.show_place(process.folder)
            yield PageRow(branch.place, (), cells)
            first = rest
        if branch.threads or len(branch.below) != 1:
            break
        (branch,) = branch.below.values()
    parts = len(branch.threads) + len(branch.below)
    for at in range(parts):
        begin, then = rest + "├ ", rest + "│ "
        if at == parts - 1:
            begin, then = rest + "└ ", rest + "  "
        if branch.place < 0 or parts == 1:
            begin, then = first, rest
        if at < len(branch.threads):
            load = branch.threads[at]
            text = f"{begin}● {name_thread(load)} ({load.now})"
            yield PageRow(("thread", load.thread), (), (text, f"thread {load.thread}"), loud=True)
        else:
            below = list(branch.below.values())[at - len(branch.threads)]
            yield from _list_branches(process, below, begin, then)


# ---- processes --------------------------------------------------------------------------------


def _make_processes(choice: Choice, processes: Sequence[TopProcess]) -> Page:
    """Return one row per process; what the main threads do shows which one differs."""
    rows = [_make_process(number, process, choice) for number, process in enumerate(processes)]
    title = f"processes · {show_window(choice.window_s or LONGEST_S)}"
    if any(process.session.rank is not None for process in processes):
        return Page(title, _PROCESSES, rows, 0)
    plain = [row._replace(values=row.values[1:], cells=row.cells[1:]) for row in rows]
    return Page(title, _PROCESSES[1:], plain, 0)


def _make_process(number: int, process: TopProcess, choice: Choice) -> PageRow:
    session = process.session
    head = [session.rank, session.pid, process.state]
    if not process.is_live:  # its rows are in the archive, which is too slow for many processes
        cells = [MISSING if value is None else str(value) for value in (*head, None, None, None)]
        return PageRow(number, (*head, None, None, None, "", ""), (*cells, "", ""))
    window_s = choice.window_s or LONGEST_S
    gil_pct, usage = process.find_gil_pct(window_s), process.read_usage()
    cpu_pct = None if usage is None else usage["user_pct"] + usage["system_pct"]
    rss = None if usage is None else usage["rss_bytes"]
    main = next((t for t in process.list_loads(window_s) if t.thread == session.pid), None)
    of = process.tree.by_line.of[main.place] if main else 0
    unit = process.tree.by_line.names[of]
    where = (shorten_func(unit.func), unit.show_place(process.folder)) if main else ("", "")
    cells = [
        *(MISSING if value is None else str(value) for value in head),
        MISSING if cpu_pct is None else f"{cpu_pct:.0f}",
        MISSING if rss is None else show_bytes_short(rss), f"{gil_pct:.0f}", *where,
    ]  # fmt: skip
    return PageRow(number, (*head, cpu_pct, rss, gil_pct, *where), cells)
