"""What the sampling kernels emit has exactly the target model's law, coin by coin.

Two rules in the normal suite; the other two, which take the interpreter longer, in `make nightly` and on a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

from specsim import kernels
from specsim.ops.losslessness import NAMES, distances

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EVERYTHING = DEVICE == "cuda" or os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


@pytest.mark.parametrize("name", NAMES if EVERYTHING else NAMES[:2])
def test_a_kernel_emits_the_targets_law(name: str) -> None:
    found = distances(name, getattr(kernels, name), device=DEVICE, quick=True)
    assert found
    assert set(found.values()) == {0}
