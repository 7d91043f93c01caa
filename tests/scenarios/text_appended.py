"""A report is written by adding each row to the text so far.

As in gramener/gramex pull request 604."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "copied for each piece that is added to it (+)"
LINE = "write"
TWIN = True

if __name__ == "__main__":
    from loop import FIXED, until_over

    class Report:
        def __init__(self) -> None:
            self.text, self.pieces = "", [""]

        def write(self, piece: str) -> None:
            if FIXED:
                self.pieces.append(piece)
            else:
                self.text = self.text + piece

        def add_row(self, row: tuple[int, int]) -> None:
            self.write(f"<tr><td>{row[0]}</td><td>{row[1]}</td></tr>")

        def finish(self) -> str:
            return self.text or "".join(self.pieces)

    def print_report(step: int) -> int:
        report = Report()
        for row in range(15000):
            report.add_row((row, row * step))
        return len(report.finish())

    for step in until_over():
        print_report(step)
