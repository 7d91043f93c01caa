"""Stacks as pictures show them."""

from __future__ import annotations

from sonde.analysis.code_fold import tidy
from sonde.analysis.profile import Place

SITE = "/v/lib/python3.12/site-packages"


def test_how_a_server_calls_your_code_is_one_place_and_what_only_runs_a_program_none() -> None:
    launch = [Place("_run_code", "<frozen runpy>", 88)]
    server = [Place("<module>", f"{SITE}/uvicorn/__main__.py", 1)]
    server += [Place(f"call_{n}", f"{SITE}/starlette/routing.py", n) for n in range(6)]
    own = [Place("price", "/job/app.py", 3), Place("dumps", f"{SITE}/orjson/__init__.py", 9)]
    folded = tidy([*launch, *server, *own])
    assert [place.func for place in folded] == [
        "uvicorn.__main__ \N{HORIZONTAL ELLIPSIS}",
        "price",
        "dumps",
    ]
    assert folded[0].file == server[0].file
    # Few callers, and stacks without your own code, are shown in full.
    assert tidy([*launch, *server[:4], *own]) == [*server[:4], *own]
    assert tidy([*launch, *server]) == server
