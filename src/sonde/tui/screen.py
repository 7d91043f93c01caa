"""The screen of `sonde top`: keys, and an update every second."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from sonde.errors import Error
from sonde.session.stack_table import WEIGHTS
from sonde.tui import header
from sonde.tui.grid import BOLD, CURSOR, DIM, PLAIN, WARN, Grid, Line, Lines, cut
from sonde.tui.page import WINDOWS_S, Choice, Page, make_page
from sonde.tui.process import TopProcess
from sonde.tui.team_page import (
    describe_team,
    describe_team_losses,
    find_most,
    make_team_page,
)
from sonde.tui.tree import Unit

REFRESH_S = 1.0
_LOSSES_S = 30.0  # between two checks of every file of the session
_NARROWEST = 20  # columns: what a narrower terminal shows is cut
_MOST = 0.1  # the share of a core for reading; after a slow refresh, the next one waits
_VIEW_KEYS = {"f": "functions", "l": "lines", "t": "threads", "s": "stacks", "p": "processes"}
_WEIGHT_KEYS = dict(zip("wcg", WEIGHTS, strict=True))
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -(10**9), "end": 10**9}
_FOOTER = (
    (("f", "functions"), ("l", "lines"), ("t", "threads"), ("s", "stacks"), ("p", "procs"),
     ("⏎", "calls"), ("esc", "back")),
    (("wcg", "weight"), ("i", "idle"), ("-+", "window"), ("/", "filter"), ("1-7", "sort"),
     ("r", "flip"), ("space", "stop")),
)  # fmt: skip
_FOOTER_END = (("?", "help"), ("q", "quit"))
_HELP = """\
views    f functions   l lines   t threads   s stacks now   p processes
         with several processes, functions and lines are the sum of all
         until enter goes into one of them; p goes back to all
enter    callers and callees of a function or a line (in the process that
         spends the most in it); the functions of a thread; a process
escape   back; drops a filter first
[ ]      the previous process, the next process
w c g    what is counted: wall time, CPU time, time holding the GIL
i        wall time with idle threads (asleep, or waiting, also for the GIL)
+ -      a longer or shorter window: 1, 5, 15 s, 1, 5 min, since start
1 … 7    sort by that column;  r reverses the order
/        only rows with a text; enter keeps the filter, escape drops it
space    freeze the screen, or go on;  the process does not notice
up, down, page up, page down, home, end, j, k   move;  q quits

self%    time in the function itself, of the time of all threads in the window
total%   time in the function and in what it called
SQL      sonde query PID "SELECT * FROM python.stack_sample"
"""


def _measure(key: str, word: str) -> int:
    return len(key) + len(word) + 3


def _draw_key(key: str, word: str) -> list[tuple[str, Style]]:
    return [(key, BOLD), (f" {word}  ", DIM)]


class Help(ModalScreen[None]):
    """The keys, and everything that was lost."""

    DEFAULT_CSS = "Help { background: ansi_default; } Help VerticalScroll { height: 1fr; }"

    def __init__(self, losses: Sequence[str]) -> None:
        super().__init__()
        text = "\n".join(f"  {line}" for line in losses) if losses else "  nothing that is known"
        self._text = f"{_HELP}\nlost (any key goes back)\n{text}"

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(self._text, markup=False))

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key not in ("up", "down", "pageup", "pagedown"):
            self.dismiss()


class Top(App[None]):
    """`sonde top`."""

    CSS = """
    Input { height: 1; border: none; padding: 0; display: none; }
    Input.open { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [Binding("ctrl+c", "quit", show=False, priority=True)]  # noqa: RUF012

    def __init__(self, processes: Sequence[TopProcess], choice: Choice) -> None:
        # The terminal's own colours suit dark and light backgrounds, and any ssh.
        super().__init__(ansi_color=True)
        self.processes = processes
        self.choice = replace(choice, everyone=len(processes) > 1)
        self.at = 0
        self.frozen = False
        self.losses: list[str] = []
        self._back: list[Choice] = []
        self._lost_at = 0.0
        # Kept here: a query finds only widgets of the topmost screen.
        self.head, self.title_line, self.foot = Lines(), Lines(), Lines()
        self.grid = Grid()
        self.box = Input(placeholder="rows with this text")

    @property
    def process(self) -> TopProcess:
        """The process that is shown."""
        return self.processes[self.at]

    @property
    def _is_team(self) -> bool:
        """Whether all processes are shown as one."""
        views = ("functions", "lines", "processes")
        is_whole = self.choice.unit is None and self.choice.thread is None
        return self.choice.everyone and self.choice.view in views and is_whole

    def compose(self) -> ComposeResult:
        yield from (self.head, self.title_line, self.grid, self.box, self.foot)

    def on_mount(self) -> None:
        self.grid.focus()
        self._tick()

    def on_resize(self) -> None:
        self.draw()

    # ---- time -----------------------------------------------------------------------------

    def _tick(self) -> None:
        begin = time.thread_time()
        if not self.frozen:
            self._refresh_processes()
            self.draw()
        spent = time.thread_time() - begin
        self.set_timer(max(REFRESH_S, spent / _MOST), self._tick)

    def _refresh_processes(self) -> None:
        shown = self.processes if self._is_team else [self.process]
        for process in shown:
            try:
                process.refresh()
            except (Error, OSError) as error:
                self._complain(error)
        first, late = not self._lost_at, time.monotonic() - self._lost_at > _LOSSES_S
        if first or (late and self.process.is_live):
            self._lost_at = time.monotonic()
            self.run_worker(self._find_losses, thread=True, group="losses", exclusive=True)

    def _find_losses(self) -> None:
        process = self.process
        try:
            losses = process.list_losses()
        except (Error, OSError) as error:
            losses = [str(error)]
        if process is self.process:
            self.losses = losses

    # ---- drawing --------------------------------------------------------------------------

    def draw(self, *, follow: bool = True) -> None:
        """Draw what is known; read nothing new."""
        try:
            page = self._make_page()
            head = self._make_head()
        except (Error, OSError) as error:
            self._complain(error)
            return
        self.head.show(head)
        self.title_line.show([self._make_title(page)])
        self.grid.show(page, self.choice.find_order(), follow=follow)
        self.foot.show(self._make_foot())

    def _make_page(self) -> Page:
        if self._is_team and self.choice.view != "processes":
            return make_team_page(self.choice, self.processes)
        return make_page(self.choice, self.process, self.processes)

    def _complain(self, error: Exception) -> None:
        text = f"cannot be read: {error}"
        self.title_line.show([[(text, WARN)]])

    def _make_head(self) -> list[Line]:
        lines: list[Line] = []
        width = self.size.width
        if self._is_team:
            whole, *others = describe_team(self.processes, self.choice.window_s, width)
            lost = describe_team_losses(self.processes)
            return [[(whole, BOLD)], *([(line, WARN)] for line in others),
                    *([(line, DIM)] for line in lost)]  # fmt: skip
        if len(self.processes) > 1:
            tabs = header.describe_tabs(self.processes, self.at, width)
            lines.append([(word, CURSOR if word.startswith("[") else PLAIN) for word in tabs])
        left, right = header.describe_process(self.process)
        room = max(0, width - len(right) - 1)
        lines.append([(cut(left, room) + " ", BOLD), (right, BOLD)])
        lines.append([(header.describe_use(self.process, self.choice.window_s, width), PLAIN)])
        end = header.describe_end(self.process)
        lines += [[(line, WARN)] for line in textwrap.wrap(end, max(width, _NARROWEST))]
        missing = header.describe_losses([*self.process.list_misses(), *self.losses], width)
        if missing:
            lines.append([(missing, DIM)])
        return lines

    def _make_title(self, page: Page) -> Line:
        line = [(page.title, BOLD)]
        reach = header.describe_reach(self.process, self.choice.window_s)
        for note in (reach, f"filter: {self.choice.filter}" if self.choice.filter else ""):
            if note:
                line.append((f" · {note}", PLAIN))
        if self.frozen:
            line.append((" · stopped, space goes on", WARN))
        count = len(page.rows)
        some = f"{count}" if count == page.whole else f"{count} of {page.whole}"
        line.append((f" · {some} rows", DIM))
        return line

    def _make_foot(self) -> list[Line]:
        """Two lines of keys, as many as fit; the last of each always does."""
        lines: list[Line] = []
        for keys, end in zip(_FOOTER, _FOOTER_END, strict=True):
            line: list[tuple[str, Style]] = []
            room = self.size.width - _measure(*end)
            for pair in keys:
                if (len(self.processes) > 1 or pair[0] != "p") and _measure(*pair) <= room:
                    room -= _measure(*pair)
                    line += _draw_key(*pair)
            lines.append([*line, *_draw_key(*end)])
        return lines

    # ---- keys -----------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        if self.box.has_focus:
            if event.key == "escape":
                self._filter("")
            return
        event.stop()
        key = event.character if event.is_printable and event.character else event.key
        if key in _VIEW_KEYS:
            self._choose(view=_VIEW_KEYS[key], unit=None, thread=None, filter="")
        elif key in _WEIGHT_KEYS:
            self._choose(weight=_WEIGHT_KEYS[key])
        elif key.isdecimal() and key != "0":
            self.choice = self.choice.sort_by(int(key) - 1)
            self.draw()
        elif key in _MOVES or key in ("pageup", "pagedown"):
            self._move(key)
        elif key in self._actions:
            self._actions[key]()

    @property
    def _actions(self) -> dict[str, Callable[[], None]]:
        return {
            "q": self.exit, "?": self._help, "h": self._help, "/": self._open_filter,
            "r": self._reverse,
            "i": lambda: self._choose(idle=not self.choice.idle), "enter": self._enter,
            "escape": self._go_back, " ": self._freeze, "+": lambda: self._widen(1),
            "=": lambda: self._widen(1), "-": lambda: self._widen(-1),
            "[": lambda: self._switch(self.at - 1), "]": lambda: self._switch(self.at + 1),
        }  # fmt: skip

    def _choose(self, **changes: object) -> None:
        """Change the choice. Another view starts at its top; another weight keeps the row."""
        follow = not {"view", "unit", "thread"} & changes.keys()
        self.choice = replace(self.choice, **changes)  # type: ignore[arg-type]
        if not follow and self.choice.unit is None and self.choice.thread is None:
            self._back.clear()
        if self.choice.view == "processes":
            self.choice = replace(self.choice, everyone=len(self.processes) > 1)
        if self._is_team and not self.frozen:
            self._refresh_processes()
        self.draw(follow=follow)

    def _move(self, key: str) -> None:
        page = max(1, self.grid.size.height - 2)
        self.grid.move(_MOVES.get(key, page if key == "pagedown" else -page))

    def _widen(self, by: int) -> None:
        spans = [span_s or inf for span_s in WINDOWS_S]
        now_s = self.choice.window_s or inf
        wider = [span_s for span_s in spans if span_s > now_s] or [inf]
        narrower = [span_s for span_s in spans if span_s < now_s] or spans[:1]
        chosen_s = wider[0] if by > 0 else narrower[-1]
        self._choose(window_s=None if chosen_s == inf else chosen_s)

    def _reverse(self) -> None:
        self.choice = self.choice.sort_by(None)
        self.draw()

    def _freeze(self) -> None:
        self.frozen = not self.frozen
        if not self.frozen:
            self._refresh_processes()
        self.draw()

    def _switch(self, to: int) -> None:
        self.at = to % len(self.processes)
        self.choice = replace(self.choice, everyone=False)
        self.losses, self._lost_at = [], 0.0
        self._back.clear()
        if not self.frozen:
            self._refresh_processes()
        self._choose(unit=None, thread=None)

    def _enter(self) -> None:
        """Go into the row: the calls of a unit, the functions of a thread, or a process."""
        row = self.grid.selected
        if row is None:
            return
        self._back.append(self.choice)
        if self.choice.view == "processes" and isinstance(row.key, int):
            self.choice = replace(self.choice, view="functions", filter="")
            self._switch(row.key)
        elif self.choice.view == "threads" and isinstance(row.key, int):
            self._choose(view="functions", thread=row.key, filter="")
        elif isinstance(row.key, Unit):
            if self._is_team:  # calls are those of one process
                self.at = find_most(self.processes, self.choice, row.key)
            self._choose(unit=row.key, filter="")
        else:
            self._back.pop()

    def _go_back(self) -> None:
        """Go back; a filter is dropped first."""
        if self.choice.filter:
            self._filter("")
        elif self._back:
            before = self._back.pop()
            kept = {"weight": self.choice.weight, "window_s": self.choice.window_s}
            self.choice = replace(before, **kept, idle=self.choice.idle)  # type: ignore[arg-type]
            self.draw(follow=False)

    def _help(self) -> None:
        self.push_screen(Help([*self.process.list_misses(), *self.losses]))

    # ---- the filter -----------------------------------------------------------------------

    def _open_filter(self) -> None:
        self.box.value = self.choice.filter
        self.box.add_class("open")
        self.box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.has_focus:
            self._choose(filter=event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._filter(event.value)

    def _filter(self, text: str) -> None:
        self.grid.focus()
        self.box.remove_class("open")
        self._choose(filter=text)
