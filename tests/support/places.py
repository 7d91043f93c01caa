"""Where things are in the checkout."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
TOP = TESTS.parent
SOURCE = TOP / "src" / "sonde"
CORE = SOURCE / "_core"
DOCS = TOP / "docs"
GOLDEN = TESTS / "golden"
NATIVE = TESTS / "native"

# Rules of advice that Spark can run beside those that docs/fleet.md lists.
SPARK_RULES = ("float32_matmul", "gpu_allocations", "low_gpu", "pinned_memory")


def list_fleet_rules() -> list[str]:
    """The rules that every engine can run, as docs/fleet.md lists them."""
    page = (DOCS / "fleet.md").read_text()
    found = re.search(r"^Rules of `sonde advise` inside the core: (.*?)\.$", page, re.S | re.M)
    assert found is not None
    return re.findall(r"`(\w+)`", found[1])
