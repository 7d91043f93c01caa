"""Our functions are left out by torch's older compilers. With a real one: test_module_calls.py on torch 2.4."""

from __future__ import annotations

from types import CodeType, SimpleNamespace

from sonde.job.source_context import SourceContext
from sonde.job.torch import module_names
from sonde.job.torch.old_compiler import leave_out_ours, wrap_hook


def make_torch(**functions: object) -> SimpleNamespace:
    """A torch with a compiler that has these functions."""
    frames = SimpleNamespace(**functions)
    return SimpleNamespace(_C=SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=frames)))


def test_functions_methods_and_what_is_defined_in_them_are_left_out() -> None:
    left_out: list[CodeType] = []
    leave_out_ours(make_torch(skip_code=left_out.append))
    guard = SourceContext.guard.__code__
    codes = (one for one in guard.co_consts if isinstance(one, CodeType))
    (guarded,) = (one for one in codes if one.co_name == "guarded")  # from 3.14 on: __annotate__
    assert {guard, guarded, module_names.Naming.name.__code__} <= set(left_out)
    others = [code for code in left_out if "sonde" not in code.co_filename]
    assert {code.co_filename for code in others} <= {"<string>"}  # what dataclasses write


def test_a_torch_that_cannot_leave_code_out_stays_as_it_is() -> None:
    leave_out_ours(make_torch())
    leave_out_ours(SimpleNamespace(_C=SimpleNamespace()))


def test_only_an_old_compiler_gets_a_hook_that_it_leaves_out() -> None:
    hook = wrap_hook(make_torch(skip_code=None), abs)
    assert hook is abs
    hook = wrap_hook(make_torch(skip_code=id), abs)
    assert hook(-1) == 1 and hook._torchdynamo_disable  # type: ignore[attr-defined]
