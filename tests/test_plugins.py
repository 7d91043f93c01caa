"""A folder is a registry; a file is a plugin: the contract of each kind."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

import pytest

from sonde import plugins, settings
from sonde.collector.sensors._files import Reader
from sonde.errors import Unavailable
from sonde.session.schema import make_schema
from sonde.tables import name_row, system


@pytest.mark.parametrize(
    "folder", ["job.sources", "collector.sensors", "export.formats", "job.mirrors", "cli"]
)
def test_every_plugin_says_in_one_line_what_it_is(folder: str) -> None:
    names = plugins.list_names(folder)
    assert names
    for name in names:
        text = plugins.read_help(folder, name)
        assert text and text == (plugins.load(folder, name).__doc__ or "").splitlines()[0].strip()
        assert text.endswith((".", "me."))


def test_names_are_listed_without_importing() -> None:
    code = (
        "import sys; from sonde import plugins; plugins.list_names('collector.sensors');"
        "plugins.read_help('collector.sensors', 'cpu'); print('sonde.collector.sensors.cpu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", plugins.list_names("job.sources"))
def test_a_source_starts_stops_and_leaves_nothing(name: str) -> None:
    from sonde.job.recorder import Recorder

    recorder = Recorder()
    settings = {f"source.{other}": other == name for other in plugins.list_names("job.sources")}
    recorder.start({**settings, "collector": False})
    assert list(recorder._sources) == [name]
    source, _context = recorder._sources[name]
    source.stop()
    source.stop()
    recorder.stop()  # the inventory fixture looks at what is left


@pytest.mark.parametrize("name", plugins.list_names("collector.sensors"))
def test_a_sensor_reads_the_machine_and_a_process(name: str) -> None:
    import os

    module = plugins.load("collector.sensors", name)
    reader = Reader()
    sensor = module.Sensor(reader)
    rows: list[tuple[type, tuple[object, ...]]] = []
    try:
        for _ in range(2):  # the first only tells where the counters are
            reader.begin()
            rows += [*sensor.read_machine(), *sensor.read_process(os.getpid())]
    except Unavailable:
        pass
    reader.close()
    assert {row for row, _values in rows} <= set(system.ROWS)
    for row, values in rows:
        assert len(values) == len(make_schema(row, name_row(row)).fields)


@pytest.mark.parametrize("name", plugins.list_names("tables"))
def test_every_recorded_table_and_each_of_its_columns_has_a_text(name: str) -> None:
    rows = plugins.load("tables", name).ROWS
    assert rows
    for row in rows:
        schema = make_schema(row, name_row(row))
        assert schema.doc and all(field.doc for field in schema.fields), schema.table


@pytest.mark.parametrize("name", plugins.list_names("cli"))
def test_a_command_takes_its_arguments(name: str) -> None:
    module = plugins.load("cli", name)
    module.add_arguments(argparse.ArgumentParser())
    assert callable(module.run)


def test_help_of_every_command_works(sonde_cli) -> None:
    everything = sonde_cli("--help")
    assert everything.returncode == 0
    for name in plugins.list_names("cli"):
        assert f"\n  {name} " in everything.stdout
        done = sonde_cli(name, "--help")
        assert done.returncode == 0 and "usage: sonde" in done.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Write the one source of a package of its own: source(text)."""
    monkeypatch.setattr(plugins, "PACKAGE", str(tmp_path))

    def write(text: str) -> None:
        (tmp_path / "sources").mkdir(exist_ok=True)
        (tmp_path / "sources" / "one.py").write_text(text)
        monkeypatch.setattr(plugins, "_texts", {})

    return write


@pytest.mark.parametrize("name", plugins.list_names("job.sources"))
def test_what_a_source_declares_is_read_as_python_reads_it(name: str) -> None:
    module = plugins.load("job.sources", name)
    assert plugins.read_on("job.sources", name) is module.ON
    assert plugins.read_needs("job.sources", name) == module.NEEDS


def test_only_these_sources_are_off_unless_asked_for() -> None:
    names = plugins.list_names("job.sources")
    off = [name for name in names if not plugins.read_on("job.sources", name)]
    assert off == ["call", "compile", "cuda_memory", "heap", "kernel", "operator", "request"]
    assert not settings.list_keys()["source.call"].default


@pytest.mark.parametrize(
    "docstring",
    ['"""All calls."""', '"""All calls (off until asked)."""', '"""All calls\n(with torch)."""'],
)
def test_the_words_of_a_docstring_change_nothing(folder, docstring: str) -> None:
    folder(f'{docstring}\n\nimport os\n\nON = False\nNEEDS = ("torch", "numpy")\n')
    assert plugins.read_on("sources", "one") is False
    assert plugins.read_needs("sources", "one") == ("torch", "numpy")


@pytest.mark.parametrize(
    "text", ["", "ON = not 1\nNEEDS = []\n", "ON = True\nON = False\nNEEDS = ()\nNEEDS = ()\n"]
)
def test_a_source_that_does_not_declare_on_and_needs_is_refused(folder, text: str) -> None:
    folder(f'"""A source."""\n\n{text}')
    with pytest.raises(ValueError, match=r"one\.py.*ON = "):
        plugins.read_on("sources", "one")
    with pytest.raises(ValueError, match=r"one\.py.*NEEDS = "):
        plugins.read_needs("sources", "one")
