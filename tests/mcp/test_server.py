"""An agent without a model: it follows the next question of each answer to the guilty line."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.needs import need
from support.places import TESTS
from support.shared import record_scenario

mcp = pytest.importorskip("mcp")
need("torch")

MOST_CALLS, MOST_TOKENS = 5, 4000
GUILTY = {"lock_fight": "with lock:", "starved_loader": "burn(0.003)", "gc_storm": "gc.collect()"}
Ask = Callable[..., Awaitable[str]]


@pytest.fixture(scope="module", params=GUILTY)
def recorded(request, tmp_path_factory) -> tuple[str, Path]:
    """A scenario, and the folder that it was recorded into."""
    return request.param, record_scenario(tmp_path_factory, request.param)


def converse(folder: Path, talk: Callable[[Any, Ask], Awaitable[None]]) -> None:
    """Start the server as an agent does, and have `talk` speak with it."""

    async def begin() -> None:
        env = {**os.environ, "SONDE_DIR": str(folder)}
        words = ["-m", "sonde", "mcp"]
        server = mcp.StdioServerParameters(command=sys.executable, args=words, env=env)
        async with mcp.Client(server) as client:

            async def ask(name: str, **given: object) -> str:
                result = await client.call_tool(name, given)
                (content,) = result.content
                return f"ERROR {content.text}" if result.is_error else content.text

            await talk(client, ask)

    asyncio.run(begin())


def read_next(answer: str) -> tuple[str, dict[str, object]]:
    """The call that an answer ends with."""
    call = ast.parse(re.search(r"^Next: (\w+\(.*?\))", answer, re.MULTILINE)[1], mode="eval").body
    return call.func.id, {word.arg: ast.literal_eval(word.value) for word in call.keywords}


def count_tokens(text: str) -> int:
    """No fewer than there are: a token of English or code has four characters, of numbers two."""
    return len(re.findall(r"\d{1,2}|[^\W\d]{1,4}|[^\w\s]| {2,}|\n", text))


def find_place(name: str) -> str:
    """The file and line of the guilty code."""
    lines = (TESTS / "scenarios" / f"{name}.py").read_text().splitlines()
    (at,) = (at for at, line in enumerate(lines, 1) if GUILTY[name] in line)
    return f"{name}.py:{at}"


def test_from_slow_to_the_guilty_line(recorded: tuple[str, Path]) -> None:
    name, folder = recorded

    async def talk(client: Any, ask: Ask) -> None:
        listed = (await client.list_tools()).tools
        said = [one.model_dump_json(exclude_none=True) for one in listed] + [client.instructions]
        call, given = "recordings", {}
        for _call in range(MOST_CALLS):
            answer = await ask(call, **given)
            said.append(answer)
            if re.search(rf"\b{find_place(name)}\b", answer):
                break
            call, given = read_next(answer)
        else:
            pytest.fail("\n\n".join(said))
        tokens = sum(map(count_tokens, said))
        print(name, _call + 1, "calls", tokens, "tokens")
        assert tokens <= MOST_TOKENS

    converse(folder, talk)


def test_every_tool_answers_and_none_writes(recorded: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = recorded
    if name != next(iter(GUILTY)):
        pytest.skip("one recording is enough")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    async def talk(client: Any, ask: Ask) -> None:
        assert all(one.annotations.read_only_hint for one in (await client.list_tools()).tools)
        target = read_next(await ask("recordings"))[1]["target"]
        assert find_place(name) in await ask("tree", target=target, since="+1s", sort="waiting")
        assert "This is where it was" in await ask("stacks", target=target)
        assert "the same" in await ask("compare", before=target, after=target)
        assert "python.gc_pause: " in await ask("tables", target=target)
        assert "dur_ns i64" in await ask("tables", target=target, table="python.gc_pause")
        rows = await ask(
            "sql", target=target, sql="-- a comment\nSELECT range AS n FROM range(9999)"
        )
        assert rows.startswith("n\n0\n1\n") and "more lines are left out" in rows
        assert len(rows) < 7000
        wrong = await ask("sql", target=target, sql="SELECT * FROM python.gc_paus")
        assert wrong.startswith("ERROR") and "python.gc_pause" in wrong
        for word in (f"-o{tmp_path}/x", "nobody"):
            assert (await ask("tree", target=word)).startswith("ERROR")
        sneaky = await ask("sql", target=target, sql=f"COPY (SELECT 1) TO '{tmp_path}/x'")
        assert sneaky.startswith("ERROR")

    converse(folder, talk)
    assert not (tmp_path / "x").exists()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_skill_is_in_the_package(sonde_cli) -> None:
    printed = sonde_cli("mcp", "--skill").stdout
    assert printed.startswith("---\nname: sonde\n")
    tools = set(re.findall(r"`(\w+)\(", printed))
    assert tools == {"recordings", "verdict", "stacks", "tree", "compare", "tables", "sql"}
