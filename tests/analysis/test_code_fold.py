"""Stacks as pictures show them."""

from __future__ import annotations

from sonde.analysis.code_fold import fold, keep_all, tidy
from sonde.analysis.code_names import find_owner
from sonde.analysis.profile import Place, ProfileFrame

SITE = "/v/lib/python3.12/site-packages"


def test_how_a_server_calls_your_code_is_one_place_and_what_only_runs_a_program_none() -> None:
    launch = [Place("_run_code", "<frozen runpy>", 88)]
    server = [Place("<module>", f"{SITE}/uvicorn/__main__.py", 1)]
    server += [Place(f"call_{n}", f"{SITE}/starlette/routing.py", n) for n in range(6)]
    own = [Place("price", "/job/app.py", 3), Place("dumps", f"{SITE}/orjson/__init__.py", 9)]
    folded = tidy([*launch, *server, *own])
    assert [place.func for place in folded] == [
        "uvicorn \N{HORIZONTAL ELLIPSIS}",
        "price",
        "dumps",
    ]
    assert folded[0].file == server[0].file
    # Few callers, and stacks without your own code, are shown in full.
    assert tidy([*launch, *server[:4], *own]) == [*server[:4], *own]
    assert tidy([*launch, *server]) == server


IMPORTER = "<frozen importlib._bootstrap>"
OUR_IMPORT = [
    ("main", "/job/app.py", 5, 1), ("_reply", f"{SITE}/sonde/job/attached.py", 180, 170),
    ("_find_and_load", IMPORTER, 9, 1), ("<module>", "/opt/lib/python3.12/json/__init__.py", 1, 1),
]  # fmt: skip


def test_what_we_import_is_no_import_of_the_program() -> None:
    frames = [ProfileFrame(*one) for one in OUR_IMPORT]
    assert [step.name for step in fold(frames, find_owner)] == ["main", "sonde's own work"]
    assert [step.name for step in keep_all(frames, find_owner)] == ["main"]
    assert [place.func for place in tidy([Place(*one[:3]) for one in OUR_IMPORT])] == ["main"]
    # What the user's own code does below a function of ours is the program's.
    inner = [*frames, ProfileFrame("load", "/job/plugin.py", 3, 1)]
    assert [step.name for step in fold(inner, find_owner)] == ["main", "import json"]


def test_a_function_in_a_function_has_the_same_name_in_all_pictures() -> None:
    one = ProfileFrame("price.<locals>.total", "/job/app.py", 5, 1)
    assert [step.name for step in fold([one], find_owner)] == ["price.total"]
    assert [step.name for step in keep_all([one], find_owner)] == ["price.total"]
    assert [place.func for place in tidy([Place(one.func, one.file, 1)])] == ["price.total"]
