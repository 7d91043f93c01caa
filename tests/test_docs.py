"""What the pages say of the code is true: links, files, folders, commands, tables."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import sonde
from sonde import cli, plugins
from support import file_index
from support.places import GOLDEN, SOURCE, TOP

PAGES = sorted([*TOP.glob("*.md"), *(TOP / "docs").glob("*.md")])
MAP = (TOP / "docs" / "layout.md").read_text()


def make_anchor(title: str) -> str:
    """Return the anchor that a heading has on the page."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def name_page(page: Path) -> str:
    return str(page.relative_to(TOP))


def find_blocks(text: str, *languages: str) -> list[str]:
    """Return what stands between fences that name one of these languages, or none: what is typed,
    and what it prints."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in found if language in (languages or ("",))]


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            if anchor:
                titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                assert anchor in map(make_anchor, titles), link


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = re.sub(r"https://\S+", "", page.read_text())
    named = re.findall(r"\b(?:src|tests|benchmarks|docs)/[\w./-]*\w", text)
    missing = {name for name in named if "NAME" not in name and not (TOP / name).exists()}
    assert missing <= {"src/sonde/export/formats/leaves.py", "tests/export/formats/test_leaves.py"}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    blocks = "\n".join(find_blocks(text))
    named = re.findall(r"^(?:\$ )?(?:\.venv/bin/)?sonde ([a-z]+)", blocks, re.MULTILINE)
    named += re.findall(r"`sonde ([a-z]+)", text)
    assert set(named) <= {*plugins.list_names("cli"), "help"}


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_table_that_a_page_names_is_there(page: Path) -> None:
    known = set(re.findall(r"^## ([\w.]+)", (TOP / "docs" / "tables.md").read_text(), re.MULTILINE))
    named = re.findall(r"[`\s(]((?:python|system|event)\.[a-z_]+)", page.read_text())
    named = [name for name in named if not name.endswith(".py")]
    assert set(named) - known <= {"event.mirror", "event.totals"}  # a setting, a file


def find_examples(text: str) -> Iterator[list[str]]:
    """Yield the words of every example of a command, in blocks for people and for shells: also
    behind variables, and without what a pipe or a redirection adds."""
    for block in find_blocks(text, "", "sh", "bash", "console", "yaml"):
        lines = iter(block.splitlines())
        for line in lines:
            example = re.sub(r"^(\w+=\S+ )*", "", line.removeprefix("$ "))
            if example.startswith("sonde "):
                while example.count('"') % 2:
                    example += "\n" + next(lines)
                if not set(example.partition(" #")[0]) & set("…["):
                    yield split_words(example)


def find_mentions(text: str) -> Iterator[list[str]]:
    """Yield the words of every command that a sentence names: it may leave out what it is about."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for mention in re.findall(r"`(sonde [^`]*[^`\s])`", text):
        if not set(mention) & set("\u2026["):
            yield split_words(mention)


def split_words(example: str) -> list[str]:
    """Return the words behind `sonde`, up to what belongs to the shell."""
    words = shlex.shlex(example, posix=True, punctuation_chars="|;>&")
    words.whitespace_split = True
    return list(itertools.takewhile(lambda word: not set(word) <= set("|;>&"), words))[1:]


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_example_of_a_command_is_understood(page: Path) -> None:
    for words in find_examples(page.read_text()):
        ours, _theirs = cli._split_command(words)
        try:
            _parsed, unknown = cli.make_parser(ours).parse_known_args(ours)
        except SystemExit:
            pytest.fail(f"sonde {shlex.join(words)}")
        assert not unknown, words


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_command_in_a_sentence_has_options_that_are_there(page: Path) -> None:
    for words in find_mentions(page.read_text()):
        ours, _theirs = cli._split_command(words)
        if ours[0] == "run":
            continue  # what stands behind the program is the program's
        named = {word.partition("=")[0] for word in ours if word.startswith("-")}
        assert named <= list_options(cli.make_parser(ours)), words


def list_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of its sub-commands."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for one in action.choices.values() for option in list_options(one)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_example_in_python_compiles_and_names_what_is_there(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        compile(block, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for name in re.findall(r"(?<![\w.`])sonde\.(\w+)", block):
            assert hasattr(sonde, name) or importlib.util.find_spec(f"sonde.{name}"), name


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_query_of_a_page_can_be_run(page: Path) -> None:
    recording = sonde.open(str(next(path.parent for path in GOLDEN.rglob("meta.json"))))
    queries = [words[2] for words in find_examples(page.read_text()) if words[0] == "query"]
    for sql in queries + re.findall(r"^```sql\n(.*?)^```$", page.read_text(), re.DOTALL | re.M):
        # Tables of programs, and a column of shared places, are not in this recording.
        if "job." not in sql and "frames" not in sql:
            recording.query(sql)


def test_the_map_names_every_folder_and_no_other() -> None:
    files = subprocess.run(
        ["git", "ls-files", "src/sonde"], cwd=TOP, capture_output=True, text=True, check=False
    ).stdout.split()
    if not files:
        pytest.skip("not a clone")
    folders = {str(Path(name).parent.relative_to("src/sonde")) for name in files} - {".", "_core"}
    python, _, c = MAP.partition("## C: ")
    named = set(re.findall(r"^\| `([\w/]+)/` \|", python, re.MULTILINE))
    named |= {
        f"_core/{name}" for name in re.findall(r"^\| `(\w+)/` \|", c.partition("## ")[0], re.M)
    }
    assert named == folders


def test_the_map_begins_with_files_that_are_there() -> None:
    rows = re.findall(r"^\| `([\w/]+/)` \|[^|]*\| ([^|]*) \|$", MAP, re.MULTILINE)
    for folder, files in rows:
        for name in re.findall(r"`(\w+\.py)`", files):
            assert (SOURCE / folder / name).exists(), f"{folder}{name}"


def test_the_map_knows_where_things_are() -> None:
    section = MAP.partition("## Where is …?")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+\.[pyc]+)`", section)
    assert len(files) > 20
    assert [name for name in files if not (SOURCE / name).exists()] == []


def test_the_list_of_files_is_current() -> None:
    assert file_index.make_page() == MAP, "run `make docs`"


def test_the_map_says_what_the_law_says() -> None:
    from test_layers import GROUND, LAW

    section = MAP.partition("## Who may import whom")[2].partition("\n## ")[0]
    for room, allowed in LAW.items():
        for row in re.findall(rf"^\| [^|]*`{room}/`[^|]* \|(.*)\|$", section, re.MULTILINE):
            if " as `" not in row:  # rows that build on another one are read, not parsed
                named = set(re.findall(r"`(\w+)/?`", row))
                assert named == allowed - GROUND, room
