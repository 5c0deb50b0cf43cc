"""The lockstep interpreter gives, bit for bit, what Triton's own gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from specsim import kernels
from specsim.choices.chooser import seeded
from specsim.contracts.registry import OPS
from specsim.interpreter.lockstep.launch import lockstep
from specsim.interpreter.triton_names import mend_interpreter

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Op, Tensors

KERNEL_OPS = [op for op in OPS.values() if hasattr(kernels, op.name)]


def results(op: Op, case: Case) -> Tensors:
    tensors = {name: tensor.clone() for name, tensor in case.tensors.items()} | op.allocate_outputs(case)
    return op.call(getattr(kernels, op.name), case.sizes, tensors)


@pytest.mark.parametrize("op", KERNEL_OPS, ids=lambda op: op.name)
@pytest.mark.slow(runs_one_in=4)
def test_every_kernel_gives_the_same_bits_in_both_interpreters(op: Op) -> None:
    mend_interpreter()
    launched = 0  # none by some cases: a mask without a row
    for index in range(4):
        case = op.generate(seeded(0, "lockstep", op.name, index))
        with lockstep(fall_back=False) as launches:
            actual = results(op, case)
        with np.errstate(all="ignore"):
            expected = results(op, case)
        launched += launches.count
        for name, mask in op.defined(case, op.expected(case)).items():
            assert torch.equal(_bits(actual[name][mask]), _bits(expected[name][mask])), name
    assert launched


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor
