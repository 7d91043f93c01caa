"""What rules may decide from: what was recorded, and no text of the program."""

from __future__ import annotations

import ast
from pathlib import Path

from sonde import advice

READERS = ("linecache", "source_lines", "inspect")
OPENERS = {"open", "Path", "io.open", "os.open", "linecache.getline"}


def test_no_rule_reads_the_text_of_the_program() -> None:
    paths = sorted(Path(advice.__file__).parent.rglob("*.py"))
    assert len(paths) > 80
    for path in paths:
        found = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = " ".join(
            ast.unparse(one) for one in found if isinstance(one, (ast.Import, ast.ImportFrom))
        )
        calls = {ast.unparse(one.func) for one in found if isinstance(one, ast.Call)}
        assert not [name for name in READERS if name in imports] and not calls & OPENERS, path


def test_files_of_the_program_with_names_of_pythons_are_told_apart() -> None:
    """A pattern such as `%/queue.py` is true of a program's own queue.py as well."""
    plain = (
        "queue.py",
        "threading.py",
        "functools.py",
        "contextlib.py",
        "runpy.py",
        "selectors.py",
    )
    for path in sorted((Path(advice.__file__).parent / "rules").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in plain if f"LIKE '%/{name}'" in text], path
