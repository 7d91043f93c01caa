"""JSON without the package `json`: the same text."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonde.session.json_text import dump, dump_lines

TEXTS = st.text(st.characters())  # lone surrogates as well: argv may hold them
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=12,
)
# How fast values are made says something of the machine, and nothing of us.
CALM = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@CALM
@given(VALUES)
def test_it_is_what_json_writes(value: object) -> None:
    assert dump(value) == json.dumps(value)
    assert dump(value, sort=True) == json.dumps(value, sort_keys=True)


@CALM
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3))
def test_lines_are_an_object(values: dict[str, object]) -> None:
    read = json.loads("{" + ",\n".join(dump_lines(values)) + "}")
    assert json.dumps(read) == json.dumps(values)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        dump({"a": {1, 2}})


def test_a_start_does_not_import_json(run) -> None:
    show = "import sys; print(*sorted({'json', 're', 'enum'} & set(sys.modules)))"
    before = run(show).stdout  # what hooks of other packages import
    code = "import sonde; sonde.start(collector='off', follow=False); " + show
    assert run(code).stdout == before
