"""Verification of ragged drafts at its edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from property_tests.naive.ragged_drafts import (
    sample_recovered_tokens_naive,
    step_slot_mapping_naive,
    verify_ragged_greedy_naive,
    verify_ragged_rejection_naive,
)
from specsim.reference.ragged_drafts import (
    SlotMapping,
    sample_recovered_tokens,
    step_slot_mapping,
    verify_ragged_greedy,
    verify_ragged_rejection,
)

NO_DRAFTS = torch.zeros(0, dtype=torch.int32)
BONUS = torch.tensor([7, 9], dtype=torch.int32)


@pytest.mark.parametrize("num_steps", [0, 1, 3])
@pytest.mark.parametrize("verify", [verify_ragged_greedy, verify_ragged_greedy_naive])
def test_a_batch_without_drafts_emits_its_bonus_tokens(verify: Callable[..., torch.Tensor], num_steps: int) -> None:
    ends, target = torch.zeros(2, dtype=torch.int32), torch.zeros(0, dtype=torch.int64)
    emitted = verify(ends, NO_DRAFTS, target, BONUS, torch.tensor([True, True]), num_steps)
    assert emitted.tolist() == [[token] + [-1] * num_steps for token in BONUS.tolist()]


@pytest.mark.parametrize("num_steps", [0, 2])
@pytest.mark.parametrize("verify", [verify_ragged_rejection, verify_ragged_rejection_naive])
def test_so_does_one_at_a_temperature_and_greedy_requests_are_left_alone(
    verify: Callable[..., torch.Tensor], num_steps: int
) -> None:
    ends, probs = torch.zeros(2, dtype=torch.int32), torch.zeros(0, 5)
    uniform = torch.zeros(0, dtype=torch.float64)
    is_greedy = torch.tensor([False, True])
    emitted = verify(ends, NO_DRAFTS, probs, probs, BONUS, NO_DRAFTS, uniform, is_greedy, 1, num_steps)
    assert emitted.tolist() == [[7] + [-1] * num_steps, [-1] * (num_steps + 1)]


@pytest.mark.parametrize("excess", [2.0**-23, 5e-4])
@pytest.mark.parametrize("verify", [verify_ragged_rejection, verify_ragged_rejection_naive])
def test_a_certain_draft_whose_probability_rounds_to_more_than_one_is_accepted(
    verify: Callable[..., torch.Tensor], excess: float
) -> None:
    draft, certain = torch.tensor([0], dtype=torch.int32), torch.tensor([[1.0, 0.0, 0.0]])
    uniform = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    of_drafts = (draft + 1, draft, certain * (1 + excess), certain, BONUS[:1], draft + 2, uniform)
    assert verify(*of_drafts, torch.tensor([False]), 1, 1).tolist() == [[0, 7]]


@pytest.mark.parametrize("sample", [sample_recovered_tokens, sample_recovered_tokens_naive])
def test_what_exceeds_one_is_not_taken_off_the_target(sample: Callable[..., torch.Tensor]) -> None:
    draft, target = torch.tensor([0], dtype=torch.int32), torch.tensor([[1 + 2.0**-12, 0.0, 2.0**-13]])
    race = torch.tensor([[1.0, 1.0, 1.0]])
    recovered = sample(draft + 1, draft, torch.tensor([[1 + 2.0**-11, 0.0, 0.0]]), target, race, 1)
    assert recovered.tolist() == [0]


@pytest.mark.parametrize("verify", [verify_ragged_greedy, verify_ragged_greedy_naive])
def test_a_greedy_request_takes_the_targets_token_in_place_of_a_placeholder(
    verify: Callable[..., torch.Tensor],
) -> None:
    ends, drafts, target = torch.tensor([3]).int(), torch.tensor([4, -1, 6]).int(), torch.tensor([4, 5, 6])
    assert verify(ends, drafts, target, BONUS[:1], torch.tensor([True]), 3).tolist() == [[4, 5, -1, -1]]


@pytest.mark.parametrize("has_draft_probs", [0, 1])
@pytest.mark.parametrize("verify", [verify_ragged_rejection, verify_ragged_rejection_naive])
def test_a_placeholder_is_rejected_at_any_uniform_draw(
    verify: Callable[..., torch.Tensor], has_draft_probs: int
) -> None:
    ends, drafts, recovered = torch.tensor([2]).int(), torch.tensor([-1, 2]).int(), torch.tensor([1, 0]).int()
    last = torch.tensor([[0.0, 0.0, 1.0]] * 2)  # what an index of -1 would read is a certain token
    uniform = torch.zeros(2, dtype=torch.float64)
    rest = (BONUS[:1], recovered, uniform, torch.tensor([False]), has_draft_probs, 2)
    assert verify(ends, drafts, last, last, *rest).tolist() == [[1, -1, -1]]


@pytest.mark.parametrize(("has_draft_probs", "expected"), [(0, 2), (1, 0)])
@pytest.mark.parametrize("sample", [sample_recovered_tokens, sample_recovered_tokens_naive])
def test_of_a_placeholder_only_the_draft_distribution_is_taken_off_the_target(
    sample: Callable[..., torch.Tensor], has_draft_probs: int, expected: int
) -> None:
    ends, drafts, race = torch.tensor([1]).int(), torch.tensor([-1]).int(), torch.ones(1, 3)
    target, draft = torch.tensor([[0.375, 0.125, 0.5]]), torch.tensor([[0.25, 0.25, 0.5]])
    assert sample(ends, drafts, draft, target, race, has_draft_probs).tolist() == [expected]


@pytest.mark.parametrize("step", [step_slot_mapping, step_slot_mapping_naive])
def test_the_last_position_has_a_slot_and_what_follows_it_has_none(step: Callable[..., SlotMapping]) -> None:
    positions = torch.tensor([5, 6, 7, 8])  # of 8, the last of which is 7
    table = torch.tensor([[10, 11], [20, 21], [30, 31], [40, 41]]).int()
    seq_lens = (positions + 1).int()
    mapping = step(positions, table, seq_lens, 4, 8, 5)
    assert mapping.clamped_positions.tolist() == [6, 7, 0, 0]
    assert mapping.slot_mapping.tolist() == [46, 87, -1, -1, -1]
    assert seq_lens.tolist() == [7, 8, 1, 1]


def test_a_next_position_behind_the_table_is_refused() -> None:
    table, seq_lens = torch.tensor([[10, 11]]).int(), torch.tensor([8]).int()
    message = r"positions\[0\] is 7; allowed: 0 to 6, for the table to have the next one, or 99 or more"
    with pytest.raises(ValueError, match=message):
        step_slot_mapping(torch.tensor([7]), table, seq_lens, 4, 100, 1)
    assert seq_lens.tolist() == [8]
