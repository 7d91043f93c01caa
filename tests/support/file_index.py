"""Prints docs/files.md: every file of src/sonde/ with the first sentence that it says about itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "sonde"
HEAD = """# Every file

Each file of `src/sonde/`, with what its first sentence says about it. [layout.md](layout.md) says what the folders
are for and where a new line belongs. `make docs` writes this page."""


def make_page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(line for folder in _list_folders() for line in _draw(folder))]) + "\n"


def _list_folders() -> Iterator[Path]:
    yield SOURCE
    yield from sorted(path for path in SOURCE.rglob("*") if path.is_dir())


def _draw(folder: Path) -> Iterator[str]:
    rows = [(path.name, text) for path in sorted(folder.iterdir()) if (text := _describe(path))]
    if rows:
        name = folder.relative_to(SOURCE).as_posix()
        yield "\n## The ground\n" if name == "." else f"\n## `{name}/`\n"
        yield "| file | what it is |\n|---|---|"
        for file, text in rows:
            yield f"| `{file}` | " + text.replace("|", "\\|") + " |"


def _describe(path: Path) -> str | None:
    """Return the first sentence of a file; None for a header that belongs to a C file, and for
    whatever is no source."""
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
    elif path.suffix == ".c" or (path.suffix == ".h" and not path.with_suffix(".c").exists()):
        comment = re.search(r"/\*(.*?)\*/", path.read_text(), re.DOTALL)
        text = re.sub(r"\n \*", "\n", comment[1]) if comment else ""
    else:
        return None
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.?])\s", paragraph)[0].rstrip(".:") or None


if __name__ == "__main__":
    print(make_page(), end="")
