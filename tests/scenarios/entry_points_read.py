"""Each file asks which plugins are installed, and Python reads the metadata of all packages to tell.

As in open-telemetry/opentelemetry-python issue 3054 and pygments/pygments pull request 2979."""

from __future__ import annotations

RULE, CAUSE = "costly_calls", "metadata of installed packages"
LINE = "find_plugins"
TWIN = True

if __name__ == "__main__":
    from functools import lru_cache
    from importlib.metadata import entry_points

    from loop import FIXED, until_over

    def find_plugins(kind: str) -> list[str]:
        return [point.name for point in entry_points(group=kind)]

    if FIXED:
        find_plugins = lru_cache(find_plugins)

    def choose_lexer(name: str) -> str:
        known = find_plugins("pygments.lexers")
        return f"{name} {len(known)} {sum(range(20_000))}"

    def color(names: list[str]) -> list[str]:
        return [choose_lexer(name) for name in names]

    for _step in until_over():
        color([f"file{number}.py" for number in range(20)])
