"""Let an agent ask recordings: a server of the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import argparse
import os

import sonde.mcp

GROUP = "ask"
EXAMPLES = (
    "sonde mcp                                an agent starts this; it only reads",
    "sonde mcp --skill                        prints SKILL.md: how an agent should use it",
)
_SKILL = os.path.join(next(iter(sonde.mcp.__path__)), "SKILL.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skill", action="store_true", help="print SKILL.md instead of serving")


def run(args: argparse.Namespace) -> int:
    if args.skill:
        with open(_SKILL, encoding="utf-8") as file:
            print(file.read(), end="")
        return 0
    from sonde.mcp.server import serve  # only here: the skill can be read without its package

    serve()
    return 0
