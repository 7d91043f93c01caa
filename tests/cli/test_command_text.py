"""Commands in a narrow column are told apart."""

from __future__ import annotations

from sonde.cli._command_text import fit_commands
from sonde.words import shorten_command

TRAIN = "train.py --config large.yaml --out /data/{0} --lr {1} --seed {2}"


def test_what_all_have_is_left_out_where_there_is_no_room() -> None:
    commands = [TRAIN.format("run", rate, seed) for rate in ("1e-3", "3e-4") for seed in (1, 2)]
    assert fit_commands(commands, 40) == [
        "train.py … --lr 1e-3 --seed 1", "train.py … --lr 1e-3 --seed 2",
        "train.py … --lr 3e-4 --seed 1", "train.py … --lr 3e-4 --seed 2",
    ]  # fmt: skip
    assert fit_commands(commands, 26)[0] == "train.… --lr 1e-3 --seed 1"
    assert fit_commands(commands, 200) == commands


def test_a_word_more_or_less_is_a_difference() -> None:
    one, two = "serve.py --port 80 shop:app", "serve.py --port 80 --debug shop:app"
    assert fit_commands([one, two, "other.py"], 24) == [one, "serve.py … --debug", "other.py"]


def test_alone_or_alike_a_command_stays_as_it_is() -> None:
    long = "train.py --config large.yaml --out /data/run"
    assert fit_commands([long, long], 20) == [long, long]


def test_the_interpreter_and_the_folder_take_no_room() -> None:
    assert shorten_command("python3.11 /data/job/train.py --lr 1") == "train.py --lr 1"
    assert shorten_command("/opt/py/bin/python3 /data/train.py") == "train.py"
    assert shorten_command("python -m http.server") == "python -m http.server"
    spawned = "python -c from multiprocessing.spawn import spawn_main; spawn_main()"
    assert shorten_command(spawned) == "(multiprocessing)"


def test_what_python_runs_as_a_module_begins_with_its_name() -> None:
    commands = [f"python -m {one}" for one in ("gunicorn -w 4 -b 127.0.0.1:8000 shop:app",
                "uvicorn app:app --port 8001 --log-level error")]  # fmt: skip
    assert fit_commands(commands, 99) == commands
    assert fit_commands(commands, 45) == [
        command.removeprefix("python -m ") for command in commands
    ]
    alike = [f"python -m uvicorn app:app --log-level error --port {port}" for port in (1, 2)]
    assert fit_commands(alike, 20) == ["uvicorn \N{HORIZONTAL ELLIPSIS} --port 1",
                                       "uvicorn \N{HORIZONTAL ELLIPSIS} --port 2"]  # fmt: skip
