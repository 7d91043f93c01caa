"""Every call finds out who called it, with inspect.stack.

As in UKGovernmentBEIS/inspect_ai issue 2275 and Textualize/rich issue 2577."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "its own stack"
LINE = "name_caller"
TWIN = True

if __name__ == "__main__":
    import inspect
    import sys

    from loop import FIXED, until_over

    def name_caller() -> str:
        return sys._getframe(2).f_code.co_name if FIXED else inspect.stack()[2].function

    def trace(value: int) -> str:
        return f"{name_caller()} {value}"

    def work(value: int) -> str:
        return trace(value * value)

    for step in until_over():
        work(step)
