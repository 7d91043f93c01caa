"""Whose code a file is, and what people call it."""

from __future__ import annotations

import pytest

from sonde.analysis.code_names import find_owner, name_call, name_module, shorten_file, show_call

SITE = "/v/lib/python3.12/site-packages"
STANDARD = "/opt/py/lib/python3.12"


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/train.py", "mine"),
        ("/home/me/python3/train.py", "mine"),
        ("<string>", "mine"),
        ("/tmp/ipykernel_7/12.py", "mine"),
        (f"{SITE}/numpy/core.py", "library"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "library"),
        ("/v/bin/torchrun", "library"),
        (f"{STANDARD}/json/decoder.py", "python"),
        (f"{STANDARD}t/json/decoder.py", "python"),
        ("<frozen importlib._bootstrap>", "python"),
        (f"{SITE}/sonde/job/recorder.py", "sonde"),
        ("/src/sonde/session/files.py", "sonde"),
        ("/home/me/sonde/train/loop.py", "mine"),
        ("/home/me/sonde/train.py", "mine"),
        ("/home/me/sonde/job/main.py", "mine"),
    ],
)
def test_a_file_is_mine_a_library_s_or_python_s(file: str, owner: str) -> None:
    assert find_owner(file) == owner


def test_a_pattern_makes_a_library_mine() -> None:
    assert find_owner(f"{SITE}/shop/cart.py", ["*/site-packages/shop/*"]) == "mine"
    assert find_owner(f"{SITE}/shopping.py", ["*/site-packages/shop/*"]) == "library"


@pytest.mark.parametrize(
    ("file", "short"),
    [
        (f"{SITE}/fastapi/routing.py", "fastapi/routing.py"),
        (f"{STANDARD}/json/encoder.py", "json/encoder.py"),
        ("/job/shop/cart.py", "shop/cart.py"),
        ("/else/where/deep/cart.py", "deep/cart.py"),
        ("/cart.py", "/cart.py"),
        ("<string>", "<string>"),
        ("<frozen importlib._bootstrap>", "importlib/_bootstrap.py"),
    ],
)
def test_paths_are_short(file: str, short: str) -> None:
    assert shorten_file(file, "/job") == short


@pytest.mark.parametrize(
    ("func", "file", "name"),
    [
        ("dumps", f"{STANDARD}/json/__init__.py", "json.dumps"),
        ("DataFrame.apply", f"{SITE}/pandas/core/frame.py", "pandas.DataFrame.apply"),
        ("a.<locals>.wrapper", f"{SITE}/django/db/manager.py", "django.wrapper"),
        (
            "_handle_torch_function.<locals>.wrapped",
            f"{SITE}/torch/_tensor.py",
            "operators of arrays",
        ),
        ("<module>", f"{SITE}/uvicorn/__main__.py", "uvicorn"),
    ],
)
def test_a_call_is_named_as_its_callers_write_it(func: str, file: str, name: str) -> None:
    assert name_call(func, file) == name


def test_a_module_has_the_name_that_it_is_imported_by() -> None:
    assert name_module(f"{SITE}/numpy/linalg/__init__.py") == "numpy.linalg"
    assert name_module("/job/shop/cart.py") == "cart"
    assert name_module("<frozen runpy>") == "runpy"
    assert name_module("/v/bin/gunicorn") == "gunicorn"


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("torch._C._linalg.linalg_svdvals", "torch.linalg.svdvals"),
        ("torch._C._fft.fft_rfft", "torch.fft.rfft"),
        ("torch._C._nn.gelu", "torch.gelu"),
        ("torch._C.TensorBase.abs", "torch.Tensor.abs"),
        ("json.loads", "json.loads"),
    ],
)
def test_a_function_of_torch_is_shown_by_the_name_that_programs_use(call: str, shown: str) -> None:
    assert show_call(call) == shown
