"""Run the tests that repeat something at random, with more rounds than `make test` takes time for.

    python tests/stress/rounds.py [ROUNDS]        default: 10; 0: nothing is run

A test module that repeats says how often in ROUNDS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FILES = (
    "advice/test_machine_rules.py",
    "integration/test_kill.py",
    "job/sources/test_stack.py::test_thousands_of_threads_are_seen",
)


class Rounds:
    """Sets ROUNDS in every module of tests."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        for item in items:
            assert hasattr(item.module, "ROUNDS"), item.nodeid
            item.module.ROUNDS = self.rounds


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    words = [*(str(TESTS / name) for name in FILES), "-q", "-p", "no:cacheprovider"]
    sys.exit(pytest.main(words, plugins=[Rounds(rounds)]) if rounds else 0)
