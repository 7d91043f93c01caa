"""Two widgets: a few lines of text, and a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from sonde.tui.page import Page, PageColumn, PageRow
from sonde.words import clean, show_bar

PLAIN, BOLD, DIM = Style(), Style(bold=True), Style(dim=True)
HEAD, CURSOR = Style(bold=True, underline=True), Style(reverse=True)
WARN, BAR = Style(bold=True, color="yellow"), Style(color="green")
_BAR_AT, _BAR = 100, 10  # the least terminal width with a bar; the width of the bar

Line = Sequence[tuple[str, Style]]


def cut(text: str, width: int, *, left: bool = False, right: bool = False) -> str:
    """Return a text in exactly `width` cells; `…` stands for what is cut off."""
    text = clean(text)
    missing = width - cell_len(text)
    if missing >= 0:
        return " " * missing + text if right else text + " " * missing
    if not left:
        return set_cell_size(text, max(0, width - 1)) + "…"[: max(0, width)]
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return set_cell_size("…" + text, width)


def share_widths(columns: Sequence[PageColumn], needs: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns: fixed ones as they are; the others share the rest, and what one
    of them does not need is for those that need more."""
    widths = [column.width for column in columns]
    left = max(0, room - sum(widths) - 2 * (len(columns) - 1))
    flexible = [at for at, width in enumerate(widths) if width == 0]
    for number, at in enumerate(sorted(flexible, key=lambda at: needs[at])):
        widths[at] = min(needs[at], left // (len(flexible) - number))
        left -= widths[at]
    if flexible:
        widths[flexible[-1]] += left
    return widths


class Lines(Widget):
    """A few lines of styled text."""

    DEFAULT_CSS = "Lines { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Show other lines."""
        self.refresh(layout=len(lines) != len(self.lines))
        self.lines = lines

    def get_content_height(self, *_sizes: object) -> int:
        """Return one row for each line."""
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        """Draw one line; `…` stands for what is cut off."""
        if y >= len(self.lines):
            return Strip.blank(self.size.width)
        strip = Strip([Segment(clean(text), style) for text, style in self.lines[y]])
        if strip.cell_length > self.size.width:
            mark = Strip([Segment("…", self.lines[y][-1][1])])
            strip = Strip.join([strip.crop(0, self.size.width - 1), mark])
        return strip.adjust_cell_length(self.size.width)


class Grid(Widget, can_focus=True):
    """A table with a cursor, which stays on its row while rows come, go and move."""

    DEFAULT_CSS = "Grid { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.page = Page("", (), [], 0)
        self.cursor = self.top = 0
        self._sort: tuple[int, bool] | None = None

    @property
    def selected(self) -> PageRow | None:
        """The row under the cursor."""
        return self.page.rows[self.cursor] if self.cursor < len(self.page.rows) else None

    def show(self, page: Page, sort: tuple[int, bool] | None, *, follow: bool) -> None:
        """Show another table; the cursor follows its row, or goes to the top."""
        before = self.selected
        self.page, self._sort = page, sort
        if not follow:
            self.cursor = self.top = 0
        elif before is not None and self.cursor > 0:  # at the top it stays there
            keys = [row.key for row in page.rows]
            self.cursor = keys.index(before.key) if before.key in keys else self.cursor
        self.move(0)

    def move(self, by: int) -> None:
        """Move the cursor, and scroll to keep it visible."""
        room = max(1, self.size.height - 1)
        self.cursor = max(0, min(self.cursor + by, len(self.page.rows) - 1))
        self.top = max(0, min(self.top, self.cursor, len(self.page.rows) - room))
        self.top = max(self.top, self.cursor - room + 1)
        self.refresh()

    def on_resize(self) -> None:
        self.move(0)

    def _find_widths(self) -> list[int]:
        columns = self.page.columns
        needs = [self._find_longest(at) for at in range(len(columns))]
        return share_widths(columns, needs, self.size.width - self._bar_room)

    def _find_longest(self, at: int) -> int:
        cells = (cell_len(row.cells[at]) for row in self.page.rows)
        return max([len(self.page.columns[at].title) + 1, *cells])  # with room for the arrow

    @property
    def _bar_room(self) -> int:
        has_shares = any(row.share for row in self.page.rows)
        return _BAR + 2 if has_shares and self.size.width >= _BAR_AT else 0

    def render_line(self, y: int) -> Strip:
        """Draw the column names, then the rows from `top` on."""
        width, widths = self.size.width, self._find_widths()
        if y == 0:
            return Strip([Segment(self._draw_head(widths), HEAD)]).adjust_cell_length(width, HEAD)
        at = self.top + y - 1
        if at >= len(self.page.rows):
            note = "  " + self.page.note if y == 2 and not self.page.rows else ""
            return Strip([Segment(note, PLAIN)]).adjust_cell_length(width)
        row = self.page.rows[at]
        style = CURSOR if at == self.cursor else BOLD if row.loud else PLAIN
        segments = [Segment(self._draw_cells(row.cells, self.page.columns, widths), style)]
        if self._bar_room:
            bar = show_bar(row.share, 1.0, _BAR).ljust(_BAR)
            segments.insert(0, Segment(bar + "  ", BAR))
        return Strip(segments).adjust_cell_length(width, style)

    def _draw_head(self, widths: list[int]) -> str:
        titles = [column.title for column in self.page.columns]
        if self._sort is not None and titles:
            at, turned = min(self._sort[0], len(titles) - 1), self._sort[1]
            titles[at] += "▼" if self.page.columns[at].descends != turned else "▲"
        return " " * self._bar_room + self._draw_cells(titles, self.page.columns, widths)

    @staticmethod
    def _draw_cells(cells: Sequence[str], columns: Sequence[PageColumn], widths: list[int]) -> str:
        return "  ".join(
            cut(cell, width, left=column.cut_left, right=column.right)
            for cell, column, width in zip(cells, columns, widths, strict=True)
        )
