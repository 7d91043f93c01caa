"""Settings in pyproject.toml and in the user's own file: which count, and whose are trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde import environ

PROJECT = """
[project]
description = "stack.every = 7"  # no setting
[tool.sonde]  # these are
stack.every = "5ms"
archive = false
archive_every = "2min"   # beside `archive`, which is a value
ring-bytes = 8_000_000
torch.modules = '.*\\.attn'
[tool.sonde.snapshot]
"keep" = 5
[tool.other]
source.gc = false
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pyproject.toml of a project, of which a folder further down is the working folder."""
    folder = tmp_path / "project" / "src"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    monkeypatch.chdir(folder)
    return folder.parent / "pyproject.toml"


def write_own(text: str) -> Path:
    own = Path(os.environ["XDG_CONFIG_HOME"], "sonde", "config.toml")
    own.parent.mkdir(parents=True)
    own.write_text(text)
    return own


def test_the_nearest_project_with_our_table_sets_values_in_any_spelling(project: Path) -> None:
    project.write_text(PROJECT)
    values, complaints = environ.load_settings({})
    assert complaints == []
    assert {name: values[name] for name in values.origins} == {
        "stack.every": 0.005, "archive": False, "archive.every": 120.0, "ring.bytes": 8_000_000,
        "torch.modules": r".*\.attn", "snapshot.keep": 5,
    }  # fmt: skip
    assert values.origins["stack.every"] == f"{project}:5"


def test_the_call_counts_before_the_environment_the_project_and_the_user(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["torch.every", "torch.depth", "snapshot.keep", "trigger.most", "compile.max_frames"]
    own = write_own("\n".join(f"{name} = 2" for name in names[1:]))
    project.write_text("[tool.sonde]\n" + "\n".join(f"{name} = 3" for name in names[2:]))
    for name in names[3:]:
        monkeypatch.setenv(environ.variable_of(name), "4")
    values, _ = environ.load_settings({names[4]: 5})
    assert [values[name] for name in names] == [1, 2, 3, 4, 5]
    assert [values.origins.get(name) for name in names] == [
        None, f"{own}:1", f"{project}:2", "SONDE_TRIGGER_MOST", environ.GIVEN,
    ]  # fmt: skip


def test_patterns_may_be_a_list(project: Path) -> None:
    project.write_text("[tool.sonde]\ncode.mine = ['*/shop/*', \"*/cart/*\"]  # both\n")
    values, complaints = environ.load_settings({})
    assert (values["code.mine"], complaints) == ("*/shop/* */cart/*", [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("code.mine = [1]", "is not understood"),
        ("code.mine = ['*/shop/*'", "is not understood"),
        ("stack.every = 5ms", "is not understood"),
        ('stack.every = "5ms', "is not understood"),
        ('torch.modules = "a\\\\b"', "is not understood"),
        ("stack.every", "is not understood"),
        ('stack.every = "soon"', "stack.every=soon is not understood"),
        ("stak.every = 1", "did you mean stack.every?"),
    ],
)
def test_a_line_that_is_no_setting_is_a_complaint_with_its_place(
    project: Path, line: str, why: str
) -> None:
    project.write_text(f"[tool.sonde]\n{line}\nstack.bytes = 65536\n")
    values, complaints = environ.load_settings({})
    assert (
        len(complaints) == 1 and complaints[0].startswith(f"{project}:2") and why in complaints[0]
    )
    assert (values["stack.every"], values["stack.bytes"]) == (0.01, 65536)


@pytest.mark.parametrize("whose", ["writable by others", "of another user", "in another's folder"])
def test_what_another_user_could_have_written_sets_nothing(project: Path, whose: str) -> None:
    project.write_text("[tool.sonde]\nstack.every = 1\n")
    if whose == "writable by others":
        project.chmod(0o646)
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    else:
        os.chown(project if whose == "of another user" else project.parent, 12345, 12345)
    values, complaints = environ.load_settings({})
    assert values["stack.every"] == 0.01
    assert len(complaints) == 1 and complaints[0].startswith(f"{project} is not used: ")


def test_limits_of_advice_may_stand_in_a_file(project: Path) -> None:
    from sonde.advice.judge import load_rules

    project.write_text("[tool.sonde]\nadvice.swap.rate_bytes = 12345\n")
    assert environ.load_settings({})[1] == []
    assert load_rules(["swap"])[0].limits["rate_bytes"] == 12345


def test_a_child_has_its_parents_settings_and_what_is_wrong_is_said_once(
    run, project: Path
) -> None:
    project.write_text('[tool.sonde]\nstack.every = "33ms"\nhost.every = "banana"\n')
    (project.parent / "below").mkdir()
    (project.parent / "below" / "pyproject.toml").write_text('[tool.sonde]\nstack.every = "44ms"\n')
    code = """
import os, subprocess, sys
import sonde
sonde.start(collector="off")
print(sonde.session().meta.config["stack.every"], flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], cwd="../below", check=True)
    sonde.stop()
    print("SONDE_STACK_EVERY" in os.environ)
"""
    done = run(code)
    assert done.stdout.split() == ["0.033", "0.033", "False"]
    assert len(done.stderr.splitlines()) == 1 and f"{project}:3: host.every=banana" in done.stderr


def test_the_command_says_where_each_value_comes_from(sonde_cli, project: Path) -> None:
    project.write_text('[tool.sonde]\nstack.every = "5ms"\nring.bytes = "lots"\n')
    done = sonde_cli("config")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("stack.every ")]
    assert line.split()[:5] == ["stack.every", "5ms", f"{project}:2", "(default", "10ms)"]
    assert done.stderr.startswith(f"sonde: {project}:3: ring.bytes=lots is not understood")
