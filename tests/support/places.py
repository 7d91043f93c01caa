"""Where things are in the checkout."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
TOP = TESTS.parent
SOURCE = TOP / "src" / "sonde"
CORE = SOURCE / "_core"
DOCS = TOP / "docs"
GOLDEN = TESTS / "golden"
NATIVE = TESTS / "native"
