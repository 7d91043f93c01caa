"""The statements of the cookbook run on a recording, and answer with the columns that it shows."""

from __future__ import annotations

import os
import re

import sonde
from sonde.session import list_sessions
from support.places import DOCS

PROGRAM = """
import sonde
class Order:
    number: int
    items: int
    seconds: float
emit = sonde.table(Order)
sonde.start(collector="off")
with sonde.span("order", number=1):
    sum(range(10**6))
emit(1, 10, 0.1)
"""
RECIPE = re.compile(
    r"^\*\*(.+?)\*\*\n\n```sql\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def test_every_statement_runs_and_has_the_columns_of_its_answer(run) -> None:
    run(PROGRAM)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    recipes = RECIPE.findall((DOCS / "cookbook.md").read_text())
    assert len(recipes) >= 30
    with sonde.open(session.folder).freeze() as recording:
        for question, sql, answer in recipes:
            head, *rows = answer.splitlines()
            assert recording.query(sql).column_names == head.split(), question
            assert rows, question
