"""Tensors in reports: whole where they are small, short where they are not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specsim.tiers.ops.written import TEXT_MAX, WHOLE_MAX, written


@given(st.lists(st.integers(0, 3), max_size=4))
def test_a_small_tensor_is_written_as_nested_lists(shape: list[int]) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    assert written(shape, tensor.flatten().tolist()) == str(tensor.tolist()) or tensor.numel() > WHOLE_MAX


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(2, 100), "[[100 times 0.0], [100 times 0.0]]"),
        (torch.cat([torch.zeros(64), torch.full((4033,), -torch.inf)])[None], "[[64 times 0.0, 4033 times -inf]]"),
        (torch.cat([torch.tensor([1, 2, 2]), torch.zeros(97).long()]), "[1, 2, 2, 97 times 0]"),
    ],
)
def test_runs_of_one_value_are_counted(tensor: torch.Tensor, text: str) -> None:
    assert written(tensor.shape, tensor.flatten().tolist()) == text


def test_a_large_tensor_is_cut() -> None:
    text = written((3000,), list(range(3000)))
    assert text.startswith("[0, 1, 2, 3, ")
    assert text.endswith(" ... (whole in the replay file)")
    assert len(text) < TEXT_MAX + 50
