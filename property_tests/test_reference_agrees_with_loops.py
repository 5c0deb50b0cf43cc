"""The batched references and their slow twins, which were written apart, give the same results."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given

from specsim import reference
from specsim.ops.registry import OPS
from specsim.ops.strategies import cases

if TYPE_CHECKING:
    from specsim.ops.contract import Case, Op

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


@every_op
def test_the_reference_equals_its_loops_on_every_element(op: Op) -> None:
    @given(case=cases(op))
    def holds(case: Case) -> None:
        expected = op.expected(case)
        twin = op.call(op.loops, case.sizes, {**case.clone().tensors, **op.allocate_outputs(case)})
        for name, tensor in expected.items():
            assert torch.equal(tensor, twin[name]), name
            assert tensor.dtype == twin[name].dtype

    holds()


@every_op
def test_the_twins_have_one_signature_and_the_contracts_names(op: Op) -> None:
    batched, loops = inspect.signature(op.reference), inspect.signature(op.loops)
    assert batched == loops
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
    modules = [reference, *(inspect.getmodule(op.reference) for op in OPS.values()), reference.validation]
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in {
                    "__future__",
                    "collections",
                    "contextlib",
                    "contextvars",
                    "itertools",
                    "torch",
                    "typing",
                } or name.startswith("specsim.reference"), name
