"""top-p where p is a sum of the most probable tokens: implementations that count from either end are right there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import given
from torch import Tensor

from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.logits import RENORM_TOLERANCE, as_fewest
from specsim.contracts.registry import OPS
from specsim.reference.logits import top_p_renorm_probs

if TYPE_CHECKING:
    from specsim.contracts.contract import Case


def counted_from_below(probs: Tensor, top_p: Tensor) -> Tensor:
    """top-p as it is said of the least probable tokens: those go whose mass, counted up to them, is below 1 - p."""
    ascending = probs.sort(dim=1).values
    first = torch.searchsorted(ascending.cumsum(1), (1 - top_p)[:, None]).clamp(max=probs.shape[1] - 1)
    kept = torch.where(probs >= ascending.gather(1, first), probs, 0)
    return kept / kept.sum(1, keepdim=True)


# On the first row three tokens have the mass 1 - p below the most probable one; on the second a rounding is between.
AT_THE_EDGE = torch.tensor([[0.25, 0.3125, 0.25, 0.1875]] * 3)
TOP_P_THERE = torch.tensor([0.3125, 0.3125 - 2.0**-25, 0.3])


def test_what_counts_from_the_least_probable_token_keeps_one_more_at_an_edge_and_that_is_as_good() -> None:
    found, right = counted_from_below(AT_THE_EDGE, TOP_P_THERE), top_p_renorm_probs(AT_THE_EDGE, TOP_P_THERE)
    assert (found > 0).sum(1).tolist() == [3, 3, 1]
    assert (right > 0).sum(1).tolist() == [1, 1, 1]
    assert torch.equal(as_fewest(AT_THE_EDGE, TOP_P_THERE, found), right)


@given(cases(OPS["top_p_renorm_probs"]))
def test_wherever_p_lies_counting_from_below_is_as_good(case: Case) -> None:
    probs, top_p = case.tensors["probs"], case.tensors["top_p"]
    found = as_fewest(probs, top_p, counted_from_below(probs, top_p))
    differs = (found - top_p_renorm_probs(probs, top_p)).abs() > RENORM_TOLERANCE
    # Without any p below 1 all is kept, what the sum no longer feels too: from below it is not felt either.
    assert not differs[top_p < 1].any()


def test_what_keeps_more_or_fewer_than_an_edge_leaves_open_stays_wrong() -> None:
    probs, p = AT_THE_EDGE[:1], TOP_P_THERE[:1]
    for pivot in (0.1875, 0.5):
        kept = torch.where(probs >= pivot, probs, 0)
        found = kept / kept.sum(1, keepdim=True)
        assert torch.equal(as_fewest(probs, p, found).nan_to_num(), found.nan_to_num())
    away = TOP_P_THERE[2:]  # no sum is near
    assert as_fewest(probs, away, counted_from_below(probs, TOP_P_THERE[:1])).gt(0).sum() == 3
