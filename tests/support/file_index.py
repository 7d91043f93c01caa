"""Writes the end of docs/layout.md: every file of src/sonde/ with the first sentence it says about itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[2]
SOURCE, PAGE = TOP / "src" / "sonde", TOP / "docs" / "layout.md"
HEAD = """## Every file

Each file of `src/sonde/`, with what its first sentence says about it. `make docs` writes this part of the page."""


def make_page() -> str:
    """Return the whole page: what people wrote, and the list as it should be."""
    written = PAGE.read_text().partition(HEAD.partition("\n")[0])[0]
    lines = (line for folder in _list_folders() for line in _draw(folder))
    return written + "\n".join([HEAD, *lines]) + "\n"


def _list_folders() -> Iterator[Path]:
    yield SOURCE
    yield from sorted(path for path in SOURCE.rglob("*") if path.is_dir())


def _draw(folder: Path) -> Iterator[str]:
    rows = [(path.name, text) for path in sorted(folder.iterdir()) if (text := _describe(path))]
    if rows:
        name = folder.relative_to(SOURCE).as_posix()
        yield "\n### The ground\n" if name == "." else f"\n### `{name}/`\n"
        yield "| file | what it is |\n|---|---|"
        for file, text in rows:
            yield f"| `{file}` | " + text.replace("|", "\\|") + " |"


def _describe(path: Path) -> str | None:
    """Return the first sentence of a file; None for a header that belongs to a C file, and for
    whatever is no source."""
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
    elif path.suffix == ".c" or (path.suffix == ".h" and not path.with_suffix(".c").exists()):
        text, header = _read_comment(path), path.with_suffix(".h")
        if re.search(r": see \S+\.h\.?$", _cut(text)) or not path.read_text().startswith("/*"):
            text = (header.exists() and _read_comment(header)) or text
    elif path.suffix == ".js":
        text = path.read_text().removeprefix('"use strict";').strip().partition("\n")[0]
        text = text.removeprefix("//").strip("/* ")
    else:
        return None
    return _cut(text).rstrip(".:") or None


def _cut(text: str) -> str:
    """Return the first sentence of a text."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.?])\s", paragraph)[0]


def _read_comment(path: Path) -> str:
    comment = re.search(r"/\*(.*?)\*/", path.read_text(), re.DOTALL)
    return re.sub(r"\n \*", "\n", comment[1]) if comment else ""


if __name__ == "__main__":
    PAGE.write_text(make_page())
