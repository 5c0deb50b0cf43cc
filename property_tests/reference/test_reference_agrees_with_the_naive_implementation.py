"""The batched references and their naive implementations, which were written independently, give the same results."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given

from property_tests.naive import NAIVE
from specsim import reference
from specsim.choices.chooser import seeded
from specsim.contracts.contract import TensorArg
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Implementation, Op, Tensors

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


def results(op: Op, implementation: Implementation, case: Case, device: str, dtype: torch.dtype) -> Tensors:
    """Every output, on the CPU, of a call with the case's float32 inputs as `dtype`."""
    tensors = {**case.clone().tensors, **op.allocate_outputs(case)}
    moved = {name: t.to(device, dtype if t.dtype == torch.float32 else t.dtype) for name, t in tensors.items()}
    widened = tuple(
        replace(arg, dtype=dtype) if isinstance(arg, TensorArg) and arg.dtype == torch.float32 else arg
        for arg in op.args
    )
    called = replace(op, args=widened).call(implementation, case.sizes, moved)
    return {name: tensor.cpu() for name, tensor in called.items()}


def assert_equal_results(op: Op, actual: Tensors, expected: Tensors) -> None:
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        if name in op.tolerance:
            torch.testing.assert_close(actual[name], tensor, rtol=0, atol=op.tolerance[name], equal_nan=True)
        else:
            assert torch.equal(actual[name], tensor), name


@every_op
@pytest.mark.slow(runs_one_in=2)
def test_the_reference_equals_the_naive_implementation_on_every_element(op: Op) -> None:
    @given(case=cases(op))
    def holds(case: Case) -> None:
        naive = results(op, NAIVE[op.name], case, "cpu", torch.float32)
        assert_equal_results(op, op.expected(case), naive)

    holds()


@pytest.mark.parametrize(
    "op",
    [op for op in OPS.values() if any(arg.dtype.is_floating_point for arg in op.tensor_args)],
    ids=lambda op: op.name,
)
@pytest.mark.slow(runs_one_in=2)
def test_the_reference_equals_the_naive_implementation_in_double_precision_too(op: Op) -> None:
    @given(case=cases(op))
    def holds(case: Case) -> None:
        naive = results(op, NAIVE[op.name], case, "cpu", torch.float64)
        assert_equal_results(op, results(op, op.reference, case, "cpu", torch.float64), naive)

    holds()


@every_op
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_on_a_gpu_equals_the_naive_implementation_on_the_cpu(op: Op, dtype: torch.dtype) -> None:
    for index in range(100):
        case = op.generate(seeded(0, "on a GPU", op.name, index))
        naive = results(op, NAIVE[op.name], case, "cpu", dtype)
        actual = results(op, op.reference, case, "cuda", dtype)
        defined = op.defined(case, naive)
        assert_equal_results(
            op,
            {name: tensor[defined[name]] for name, tensor in actual.items()},
            {name: tensor[defined[name]] for name, tensor in naive.items()},
        )


@every_op
def test_reference_and_naive_implementation_have_one_signature_and_the_contracts_names(op: Op) -> None:
    batched, naive = inspect.signature(op.reference), inspect.signature(NAIVE[op.name])
    assert batched == naive
    outputs = {arg.name for arg in op.outputs}
    inputs = {arg.name for arg in op.args} - outputs
    assert inputs <= set(batched.parameters) <= inputs | outputs


@every_op
def test_the_batched_reference_has_no_python_loop_over_requests(op: Op) -> None:
    source = ast.parse(inspect.getsource(op.reference))
    looped_over = [ast.unparse(node.iter) for node in ast.walk(source) if isinstance(node, ast.For)]
    assert all("bs" not in over and "zip" not in over for over in looped_over)
    assert not any(isinstance(node, ast.ListComp | ast.GeneratorExp) for node in ast.walk(source))


def test_the_reference_imports_torch_and_nothing_else() -> None:
    for file in Path(reference.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in {
                    *sys.stdlib_module_names,
                    "torch",
                } or name.startswith("specsim.reference"), name
