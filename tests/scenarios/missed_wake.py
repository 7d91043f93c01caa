"""Whoever puts an answer there forgets to notify: the other one waits until its timeout."""

from __future__ import annotations

RULE, CAUSE = "stalled_waits", "timeout"
LINE = "ask"
TWIN = True

if __name__ == "__main__":
    import threading

    from loop import FIXED, until_over

    changed = threading.Condition()
    asked: list[int] = []
    answers: list[int] = []

    def answer() -> None:
        while True:
            with changed:
                while not asked:
                    changed.wait()
                answers.append(asked.pop() * 2)
                if FIXED:
                    changed.notify_all()

    def ask(number: int) -> int:
        with changed:
            asked.append(number)
            changed.notify_all()
            while not answers:
                changed.wait(0.1)
            return answers.pop()

    threading.Thread(target=answer, daemon=True).start()
    for step in until_over():
        ask(step)
