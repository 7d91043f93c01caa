"""The hot path calls nothing that could allocate, lock or wait, as its imported symbols show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.places import CORE

COMPILER = os.environ.get("CC", "cc")
ALLOWED = re.compile(
    r"memcpy|memcmp|memset"
    r"|clock_gettime"  # the one system call, and a vDSO one at that
    r"|sonde_\w+"
    r"|__aarch64_(cas|swp|ldadd|ldset|ldclr|ldeor)\w+"  # atomics, chosen at run time by the CPU
    r"|__stack_chk_(fail|guard)"
    r"|_GLOBAL_OFFSET_TABLE_"
)
pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which("nm") is None, reason="no cc or nm here"
)


def _list_imports(name: str, folder: Path) -> set[str]:
    target = folder / f"{Path(name).name}.o"
    flags = ["-std=gnu11", "-O2", "-fPIC", "-c"]
    subprocess.run(
        [COMPILER, *flags, f"-I{CORE}", str(CORE / f"{name}.c"), "-o", str(target)], check=True
    )
    found = subprocess.run(["nm", "-u", str(target)], capture_output=True, text=True, check=True)
    # `U name`, in some versions with the symbol's version behind an @.
    return {line.split()[-1].partition("@")[0] for line in found.stdout.splitlines()}


@pytest.mark.parametrize("name", ["ring", "intern", "checksum", "clock"])
def test_the_hot_path_calls_only_what_is_safe_in_a_signal_handler(
    name: str, tmp_path: Path
) -> None:
    foreign = {
        symbol
        for symbol in _list_imports(f"format/{name}", tmp_path)
        if not ALLOWED.fullmatch(symbol)
    }
    assert not foreign


def test_a_call_that_may_wait_would_be_noticed(tmp_path: Path) -> None:
    # spawn.c allocates and waits: if its imports were all allowed, the test above would prove nothing.
    imports = _list_imports("kernel/spawn", tmp_path)
    assert any(not ALLOWED.fullmatch(symbol) for symbol in imports)
