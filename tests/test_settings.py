"""Settings, and what the environment says."""

from __future__ import annotations

import re

import pytest

import sonde
from sonde import environ, settings
from sonde.errors import ConfigError
from support.places import SOURCE


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("ring.bytes", "8MiB", 8 * 2**20), ("ring.bytes", "65536", 65536), ("ring.bytes", "64 KiB", 65536),
        ("retain.age", "7d", 604800.0), ("archive.every", "100ms", 0.1), ("host.every", 2, 2),
        ("stack.every", "50us", 50e-6),
        ("archive", "off", False), ("archive", True, True), ("source.gc", "no", False),
    ],
)  # fmt: skip
def test_values_are_read_with_their_units(name: str, raw: object, value: object) -> None:
    assert settings.read_values({name: raw}) == {name: value}


@pytest.mark.parametrize(
    "raw",
    [
        "loss@train_step",
        " loss@step ; acc@step, m.fc.weight.grad@Trainer.step;",
        "opt.param_groups[0]['lr']@<module>",
        'stats["a b"][-1]@run',
    ],
)
def test_watched_variables_are_names_places_and_functions(raw: str) -> None:
    assert settings.read_values({"torch.watch": raw}) == {"torch.watch": raw.strip()}


@pytest.mark.parametrize("raw", ["loss", "@step", "loss.item()@step", "a[b]@c", "a+b@c", "a@b@c"])
def test_what_would_have_to_be_run_cannot_be_watched(raw: str) -> None:
    with pytest.raises(ConfigError, match=r"torch\.watch.*is not understood"):
        settings.read_values({"torch.watch": raw})


@pytest.mark.parametrize("raw", ["nan", "-1", "101", "some", "inf"])
def test_a_budget_is_a_number_of_percent(raw: str) -> None:
    with pytest.raises(ConfigError, match=r"torch\.budget_pct"):
        settings.read_values({"torch.budget_pct": raw})


def test_a_number_is_shown_without_a_unit() -> None:
    key = settings.list_keys()["torch.budget_pct"]
    assert [key.show(key.read(raw)) for raw in ("1", 0.5, "0")] == ["1", "0.5", "0"]


@pytest.mark.parametrize("raw", ["banana", "8 parsecs", "-1", "", "1e99MiB", True])
def test_a_value_that_does_not_fit_is_refused(raw: object) -> None:
    with pytest.raises(ConfigError, match=r"ring\.bytes"):
        settings.read_values({"ring.bytes": raw})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean ring\.bytes\?"):
        settings.read_values({"ring.byte": "1MiB"})
    with pytest.raises(ConfigError, match=r"no setting foo; `sonde config` lists"):
        settings.read_values({"foo": "1"})


def test_the_environment_sets_what_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SONDE_RING_BYTES", "1MiB")
    monkeypatch.setenv("SONDE_HOST_EVERY", "5s")
    values, complaints = environ.load_settings({"host.every": 3})
    assert (values["ring.bytes"], values["host.every"], complaints) == (2**20, 3, [])


def test_a_bad_value_in_the_environment_is_a_complaint_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SONDE_RING_BYTES", "lots")
    values, complaints = environ.load_settings({})
    assert values["ring.bytes"] == 16 * 2**20
    assert complaints and "SONDE_RING_BYTES" in complaints[0]


def test_a_bad_value_is_said_once_and_the_children_say_nothing(run) -> None:
    code = """
import os, subprocess, sys
import sonde
sonde.start(collector="off")
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""
    lines = run(code, SONDE_STACK_EVERY="banana").stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("sonde: SONDE_STACK_EVERY: ")


def test_an_unknown_variable_is_said_once_with_the_nearest_and_the_children_say_nothing(
    run,
) -> None:
    code = """
import subprocess, sys
import sonde
sonde.start(collector="off")
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""
    assert run(code, SONDE_STAK_EVERY="5ms").stderr.splitlines() == [
        "sonde: there is no setting SONDE_STAK_EVERY; did you mean SONDE_STACK_EVERY?"
    ]


def test_every_variable_that_our_code_names_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\bSONDE_[A-Z_]+", text)}
    assert named >= {"SONDE_DIR", "SONDE_ONLY", "SONDE_HELD", "SONDE_ADVICE_RULE_LIMIT"}
    # Kubernetes sets those in every pod, if a service is called sonde or sonde-agent.
    for name in (*named, "SONDE_SERVICE_HOST", "SONDE_AGENT_PORT_80_TCP_ADDR"):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("SONDE_PARENT")  # or else this is a child, which says nothing
    _, complaints = environ.load_settings({})
    assert [line for line in complaints if "there is no setting" in line] == []


@pytest.mark.parametrize(
    "text", ["16MiB", "1GiB", "7d", "10min", "1s", "500ms", "100us", "on", "off", "100KiB"]
)
def test_values_are_shown_as_a_person_writes_them(text: str) -> None:
    name = {"B": "ring.bytes", "n": "archive", "f": "archive"}.get(text[-1], "retain.age")
    name = "retain.age" if text.endswith("min") else name
    key = settings.list_keys()[name]
    assert key.show(key.read(text)) == text


def test_a_source_is_on_unless_it_says_otherwise() -> None:
    keys = settings.list_keys()
    assert keys["source.gc"].default is True
    assert keys["source.call"].default is False


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "exp7"}
STANDALONE = {
    **TORCHRUN,
    "TORCHELASTIC_RUN_ID": "a4740638-dd6f-4fc0-aefe-d4f36337d5fb",
    "GROUP_WORLD_SIZE": "1",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "2", "SLURM_JOB_ID": "991"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "4", "JOB_NAME": "train-llm", "POD_NAME": "train-llm-4-x"}


@pytest.mark.parametrize(
    ("given", "launcher", "rank", "world", "local", "job"),
    [
        (TORCHRUN, "torchrun", 3, 8, 1, "exp7"),
        (SLURM, "slurm", 5, 16, 2, "991"),
        (OPENMPI, "openmpi", 0, 2, 0, None),
        (MPICH, "mpich", 1, 2, None, None),
        (KUBERNETES, "kubernetes", 4, None, None, "train-llm"),
        ({**SLURM, **TORCHRUN}, "torchrun", 3, 8, 1, "991"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "torchrun", 3, 8, 1, None),
        (STANDALONE, "torchrun", 3, 8, 1, STANDALONE["TORCHELASTIC_RUN_ID"]),
        ({**STANDALONE, "SONDE_COMMAND": "torchrun-7"}, "torchrun", 3, 8, 1, "torchrun-7"),
        ({**TORCHRUN, "SONDE_COMMAND": "torchrun-7"}, "torchrun", 3, 8, 1, "exp7"),
        ({"RANK": "many"}, None, None, None, None, None),
        ({}, None, None, None, None, None),
    ],
)
def test_rank_and_job_come_from_the_launcher(given, launcher, rank, world, local, job) -> None:
    identity = environ.read_identity(given)
    assert [getattr(identity, key) for key in ("launcher", "rank", "world_size", "local_rank", "job")] == [
        launcher, rank, world, local, job,
    ]  # fmt: skip


# ---- the environment of the program --------------------------------------------------------------


def test_of_the_environment_only_harmless_values_are_kept() -> None:
    env = {
        "OMP_NUM_THREADS": "4", "HOME": "/root", "NCCL_DEBUG": "x" * 300, "TORCH_API_KEY": "s3cret",
        "MY_FLAGS": "-O2", "MY_TOKEN": "s3cret", "TOKENIZERS_PARALLELISM": "false", "b\udc80d": "1",
        "PYTHONPATH": "/home/me",
    }  # fmt: skip
    found = environ.read_environment("MY_FLAGS, MY_TOKEN", env)
    assert found == {
        "OMP_NUM_THREADS": "4", "HOME": None, "NCCL_DEBUG": f"{'x' * 200} … 100 more",
        "TORCH_API_KEY": None, "MY_FLAGS": "-O2", "MY_TOKEN": None, "TOKENIZERS_PARALLELISM": "false",
        "b\\udc80d": None, "PYTHONPATH": None,
    }  # fmt: skip


def test_the_environment_is_a_table(monkeypatch) -> None:
    monkeypatch.setenv("MY_FLAGS", "-O2")
    monkeypatch.setenv("MY_SECRET", "s3cret")
    folder = sonde.start(collector="off", environment_values="MY_FLAGS,MY_SECRET")
    sonde.stop()
    found = sonde.open(folder).query(
        "SELECT name, value FROM python.environment WHERE name LIKE 'MY_%' ORDER BY name"
    )
    assert found.to_pylist() == [
        {"name": "MY_FLAGS", "value": "-O2"}, {"name": "MY_SECRET", "value": None}
    ]  # fmt: skip
