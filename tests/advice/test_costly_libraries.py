"""What is known of libraries: which frames and calls belong to which entry, and how sure it is."""

from __future__ import annotations

from collections import namedtuple

import duckdb
import pytest

from sonde.advice.costly_calls import CostlyCall
from sonde.advice.costly_libraries import MORE
from sonde.advice.rules import costly_calls
from sonde.advice.rules._costly_causes import is_severe
from sonde.advice.verdict import Limits

LIMITS = Limits({name: limit.default for name, limit in costly_calls.LIMITS.items()})
BY_NAME: dict[str, CostlyCall] = {one.name: one for one in costly_calls.CALLS}
PYTHON, OTHERS = "/usr/lib/python3.11", "/v/lib/python3.11/site-packages"


def find_kinds(func: str, file: str, call: str | None) -> dict[str, str]:
    """Return the kinds that the rule's own query sees where a line of the program calls this, all
    of the time: whether each is a loss, or only mentioned."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
            "CREATE TABLE python.stack_sample(ts TIMESTAMPTZ, host TEXT, pid INT, thread INT, "
            "t_ns BIGINT, stack INT, call TEXT, idle BOOL, samples INT, wall_ns BIGINT, "
            "queue_ns BIGINT, cpu_ns BIGINT, gil BOOL, wait TEXT)"
        )
        frames = [(1, 1, "work", "/job/app.py", 3)]
        frames = [(1, 0, func, file, 9), *frames] if func else [(1, 0, *frames[0][2:])]
        connection.executemany("INSERT INTO python.frame VALUES (?, ?, ?, ?, ?)", frames)
        second = 10**9
        connection.executemany(
            "INSERT INTO python.stack_sample VALUES (make_timestamptz(0), 'alpha', 7, 7, ?, 1, ?, "
            "FALSE, 10, ?, 0, ?, TRUE, NULL)",
            [(at * second, call, second, second) for at in range(10)],
        )
        found = connection.execute(costly_calls.SQL.format(piece="0", inside="TRUE", **LIMITS))
        make = namedtuple("Found", [column[0] for column in found.description])
        rows = [make(*row) for row in found.fetchall()]
        return {row.name: "loss" if is_severe(row) else "told"
                for row in rows if row.name}  # fmt: skip


@pytest.mark.parametrize(
    ("func", "file", "name", "says"),
    [
        ("Sniffer._guess_delimiter", f"{PYTHON}/csv.py", "csv_guessed", "told"),
        ("RawConfigParser.get", f"{PYTHON}/configparser.py", "settings_asked", "told"),
        ("_Environ.__getitem__", "<frozen os>", "settings_asked", "told"),
        ("mean", f"{PYTHON}/statistics.py", "statistics_exact", "told"),
        ("Enum.__hash__", f"{PYTHON}/enum.py", "enum_members", "told"),
        ("TarFile.getmember", f"{PYTHON}/tarfile.py", "archive_searched", "told"),
        ("GzipFile.seek", f"{PYTHON}/gzip.py", "archive_rewound", "told"),
        ("Counter.__add__", f"{PYTHON}/collections/__init__.py", "counters_added", "told"),
        ("Runner._lazy_init", f"{PYTHON}/asyncio/runners.py", "loops_made", "told"),
        ("Random.choices", f"{PYTHON}/random.py", "weights_added", "told"),
        ("copyfile", f"{PYTHON}/shutil.py", "files_copied", "told"),
        ("Session.__init__", f"{OTHERS}/requests/sessions.py", "clients_made", "told"),
        ("Redis.execute_command", f"{OTHERS}/redis/client.py", "redis_per_key", "told"),
        ("Template.__init__", f"{OTHERS}/django/template/base.py", "templates_parsed", "told"),
        ("Template.render", f"{OTHERS}/django/template/base.py", "templates_rendered", "told"),
        ("SQLCompiler.visit_select", f"{OTHERS}/sqlalchemy/sql/compiler.py", "statements_compiled",
         "told"),
        ("Emitter.emit", f"{OTHERS}/yaml/emitter.py", "slow_yaml_written", "told"),
        ("tqdm.update", f"{OTHERS}/tqdm/std.py", "bars_drawn", "told"),
        ("DataFrame.__init__", f"{OTHERS}/pandas/core/frame.py", "frames_small", "told"),
        ("Series.__getitem__", f"{OTHERS}/pandas/core/series.py", "series_elements", "told"),
        ("DataFrame.merge", f"{OTHERS}/pandas/core/reshape/merge.py", "frames_joined", "told"),
        ("delete", f"{OTHERS}/numpy/lib/_function_base_impl.py", "arrays_cut", "told"),
        ("delete", f"{OTHERS}/numpy/lib/function_base.py", "arrays_cut", "told"),
        ("check_array", f"{OTHERS}/sklearn/utils/validation.py", "few_rows_predicted", "told"),
        ("Image.getpixel", f"{OTHERS}/PIL/Image.py", "pixels_singly", "told"),
        ("Image.resize", f"{OTHERS}/PIL/Image.py", "pictures", "told"),
        ("Module._named_members", f"{OTHERS}/torch/nn/modules/module.py", "parameters_walked",
         "told"),
        ("PythonBackend.tokenize", f"{OTHERS}/transformers/tokenization_python.py", "slow_tokens",
         "told"),
    ],
)  # fmt: skip
def test_a_function_of_a_library_is_known(func: str, file: str, name: str, says: str) -> None:
    assert find_kinds(func, file, None).get(name) == says


@pytest.mark.parametrize(
    ("call", "name", "says"),
    [
        ("gc.get_objects", "objects_listed", "told"),
        ("_bisect.insort_right", "list_in_order", "told"),
        ("datetime.date.strftime", "dates_written", "told"),
        ("decimal.Decimal.quantize", "decimals_computed", "told"),
        ("posix.urandom", "system_random", "told"),
        ("builtins.print", "printed", "told"),
        ("cimpl.Producer.flush", "queue_flushed", "told"),
        ("tokenizers.Tokenizer.encode", "texts_tokenized", "told"),
        ("torch._C.TensorBase.repeat", "tensors_repeated", "told"),
    ],
)
def test_a_c_function_is_known(call: str, name: str, says: str) -> None:
    assert find_kinds("", "", call).get(name) == says


@pytest.mark.parametrize(
    ("func", "file"),
    [
        ("get", "/job/configparser.py"),  # the program's own
        ("fmean", f"{PYTHON}/statistics.py"),
        ("DataFrame.sum", f"{OTHERS}/pandas/core/frame.py"),
        ("ArrowExtensionArray.take", f"{OTHERS}/pandas/core/arrays/arrow/array.py"),
        ("Runner.run", f"{PYTHON}/asyncio/runners.py"),
        ("<module>", f"{OTHERS}/xarray/__init__.py"),  # it is imported
        ("Module._call_impl", f"{OTHERS}/torch/nn/modules/module.py"),
    ],
)
def test_an_ordinary_function_belongs_to_none_of_them(func: str, file: str) -> None:
    assert not {one.name for one in MORE} & set(find_kinds(func, file, None))


@pytest.mark.parametrize(
    "name", [one.name for one in MORE if any(f.startswith("<") or "/" in f for f in one.frames)]
)
def test_entries_name_files_and_functions_as_samples_do(name: str) -> None:
    for frame in BY_NAME[name].frames:
        path, _, func = frame.partition(":")
        assert path.startswith(("/", "<frozen "))
        assert " " not in func and not func.startswith("/")


def test_each_entry_says_what_to_do_in_words_and_no_other_has_its_title() -> None:
    titles = [one.title for one in MORE]
    assert len(set(titles)) == len(titles)
    assert all(len(one.instead) > 20 and not one.instead.endswith(".") for one in MORE)
