"""What the sampling kernels emit has exactly the target model's distribution, one uniform draw after the other, and
ties are told from neighbours.

The distribution of two rules is counted out in the normal suite; that of the other two, which take the interpreter
longer, in `make nightly` and on a GPU.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from specsim import kernels
from specsim.choices.chooser import seeded
from specsim.contracts.losslessness import NAMES, distances
from specsim.contracts.registry import OPS
from specsim.reference import top_k_renorm_probs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EVERYTHING = DEVICE == "cuda" or os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@pytest.mark.parametrize("name", NAMES if EVERYTHING else NAMES[:2])
@pytest.mark.slow(runs_one_in=2)
def test_a_kernel_emits_the_targets_distribution(name: str) -> None:
    found = distances(name, getattr(kernels, name), device=DEVICE, quick=True)
    assert found
    assert set(found.values()) == {0}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow(runs_one_in=5)
def test_uniform_draws_next_to_a_threshold_fall_on_the_references_side(name: str) -> None:
    op = OPS[name]
    made = (op.generate(seeded(7, name, index)) for index in range(2000))
    small = itertools.islice((case for case in made if case.sizes["num_nodes"] <= 8), 60)
    for case in small:
        tensors = {arg: tensor.to(DEVICE) for arg, tensor in {**case.tensors, **op.allocate_outputs(case)}.items()}
        results = op.call(getattr(kernels, name), case.sizes, tensors)
        expected = op.expected(case)
        for output, mask in op.defined(case, expected).items():
            assert torch.equal(results[output].cpu()[mask], expected[output][mask]), output


@pytest.mark.parametrize("low_bits", [0, 5, 123])
def test_probabilities_that_differ_by_one_bit_are_distinguished(low_bits: int) -> None:
    """The last digit of the search for a pivot: 64 neighbours around a quarter, in some order."""
    quarter = torch.tensor([0.25]).view(torch.int32) + low_bits
    rows = (quarter + torch.arange(64, dtype=torch.int32) * 37 % 64).view(torch.float32)[None].expand(8, 64) / 16
    top_k = torch.tensor([1, 2, 3, 7, 8, 9, 63, 64], dtype=torch.int32)
    kept = torch.empty(8, 64, device=DEVICE)
    kernels.top_k_renorm_probs(rows.contiguous().to(DEVICE), top_k.to(DEVICE), kept)
    assert (kept > 0).sum(1).tolist() == top_k.tolist()
    assert torch.equal(kept.cpu() > 0, top_k_renorm_probs(rows.contiguous(), top_k) > 0)
