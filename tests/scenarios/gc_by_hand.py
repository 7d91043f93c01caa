"""Each page is followed by a collection of garbage, in a program with many objects.

As in gitpython-developers/GitPython issue 605."""

from __future__ import annotations

RULE, CAUSE = "gc_pauses", "itself calls the garbage collector"
LINE = "clean"
TWIN = True

if __name__ == "__main__":
    import gc

    from loop import FIXED, burn, until_over

    catalog = [{"id": number, "tags": [str(number)]} for number in range(60000)]

    def clean() -> None:
        if not FIXED:
            gc.collect()

    def render(page: int) -> int:
        burn(0.01)
        clean()
        return len(catalog[page % len(catalog)])

    for step in until_over():
        render(step)
