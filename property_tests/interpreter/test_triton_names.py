"""One module of the product names private parts of Triton."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from specsim.errors import UsageError
from specsim.interpreter.lockstep.launch import lockstep
from specsim.interpreter.triton_names import mend_interpreter, one_line

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="replaces parts of the interpreter")

ROOT = Path(__file__).parents[2]
MAY_NAME_THEM = {
    "specsim/interpreter/triton_names.py",
    "property_tests/interpreter/test_triton_names.py",
    "property_tests/support/interleaved_programs.py",
}
PRIVATE = re.compile(
    r"triton\.runtime\.interpreter|triton\.runtime import [^#\n]*interpreter|TritonSemantic"
    r"|InterpretedFunction|InterpreterError|InterpreterBuilder|GridExecutor|interpreter_builder|_patch_lang"
)


def test_no_other_module_names_a_private_part_of_triton() -> None:
    folders = ("specsim", "reference", "kernels", "bench", "property_tests")
    naming = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert naming == MAY_NAME_THEM


@triton.jit
def passes_on_kernel(p_in, p_out):
    i = tl.program_id(0)
    tl.store(p_out + i, tl.load(p_in + i))


@interpreted
def test_the_error_of_a_kernel_is_shown_without_the_interpreters_wrapping() -> None:
    with pytest.raises(interpreter.InterpreterError) as raised:
        passes_on_kernel[(1,)](torch.arange(1), None)
    assert "InterpreterError" not in one_line(raised.value)
    assert one_line(UsageError("one\ntwo", "three")) == "UsageError: one"


@triton.jit
def counts_to_kernel(p_length, p_out):
    for i in range(tl.load(p_length)):
        tl.store(p_out + i, i)


@interpreted
def test_a_kernel_that_counts_to_a_number_in_memory_runs_with_every_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of Triton 3.6 makes an integer of an array of one element, which NumPy refuses from 2.4 on."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda _self: int([1]))  # type: ignore[call-overload]

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    length, out = torch.tensor([3]), torch.full((4,), 7)
    with pytest.raises(interpreter.InterpreterError, match="int"):
        counts_to_kernel[(1,)](length, out)
    mend_interpreter()
    mend_interpreter()
    counts_to_kernel[(1,)](length, out)
    assert out.tolist() == [0, 1, 2, 7]


@triton.jit
def uniform_kernel(p_out, seed):
    i = tl.arange(0, 4)
    tl.store(p_out + i, tl.rand(seed, i))


@interpreted
def test_a_kernel_that_calls_a_function_leaves_the_language_as_it_was() -> None:
    """What was compiled afterwards found Triton's functions in it."""
    mend_interpreter()
    before = [dict(vars(module)) for module in (tl, tl.core, tl.math)]
    expected, actual = torch.zeros(4), torch.zeros(4)
    uniform_kernel[(1,)](expected, 7)
    assert [dict(vars(module)) for module in (tl, tl.core, tl.math)] == before
    with lockstep(fall_back=False):
        uniform_kernel[(1,)](actual, 7)
    assert torch.equal(actual, expected)
