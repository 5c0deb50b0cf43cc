"""Chains that are cut: the cut follows the budget, keeps every distribution, and what does not fit is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specsim.reference.block_drafts import draft_topk1, walk_candidates
from specsim.reference.frequencies import cut_chain_frequencies
from specsim.reference.ragged_verify import (
    accept_chain_greedy,
    build_out_tokens,
    commit_inject_layout,
    committed_swa_locations,
    pad_verify_lens,
    ragged_verify_window,
    scatter_compact_to_strided,
    schedule_verify_lens,
    verify_indptr,
)

EPS = torch.tensor([1e-6])
VOCAB, STEPS = 3, 2


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def distributions(seed: int, *shape: int) -> Tensor:
    """Rows of multiples of 1/64, all positive."""
    weights = torch.randint(1, 16, (*shape, VOCAB), generator=torch.Generator().manual_seed(seed)).double()
    return weights / weights.sum(dim=-1, keepdim=True)


# The cut


CUTS: dict[str, Callable[[int, int], int]] = {
    "no draft is verified": lambda _first, _second: 1,
    "one draft is": lambda _first, _second: 2,
    "all are": lambda _first, _second: 3,
    "until the first draft of token 1": lambda first, second: 1 + (first != 1) * (1 + (second != 1)),
    "both, or none, by the first": lambda first, _second: 3 if first else 1,
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_that_goes_by_the_drafts_changes_no_distribution(cut: str) -> None:
    """Whether a draft is verified may depend on it and on those before it. The first two tokens are emitted as the
    target model has them: what a step does not emit, the next one draws from the model.
    """
    p1, p2, p3 = distributions(1), distributions(2, VOCAB), distributions(3, VOCAB, VOCAB)
    q1, q2 = distributions(4), distributions(5, VOCAB)
    emitted = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)  # by first and second token
    for first, second in itertools.product(range(VOCAB), repeat=STEPS):
        law = cut_chain_frequencies(
            torch.tensor([[0, first, second]]),
            torch.stack([q1, q2[first]])[None],
            torch.stack([p1, p2[first], p3[first, second]])[None],
            int32(CUTS[cut](first, second)),
        ).frequencies[0]  # [accepted drafts, token after them]
        drafted = q1[first] * q2[first, second]
        emitted += drafted * law[0][:, None] * p2
        emitted[first] += drafted * law[1]
        emitted[first, second] += drafted * law[2].sum()
    assert torch.allclose(emitted, p1[:, None] * p2, rtol=0, atol=1e-12)


def test_a_budget_goes_to_the_likeliest_drafts_of_the_batch() -> None:
    confidence = torch.tensor([[0.5, 1.0, 0.5], [1.0, 0.25, 1.0]])
    lens = [schedule_verify_lens(confidence, EPS, budget, 1, 4).tolist() for budget in range(8)]
    assert lens == [[1, 1], [1, 2], [2, 2], [3, 2], [3, 3], [4, 3], [4, 4], [4, 4]]


def test_what_is_not_likely_at_all_is_not_verified_whatever_the_budget() -> None:
    assert schedule_verify_lens(torch.tensor([[0.5, 0.0, 1.0]]), EPS, 9, 1, 4).tolist() == [2]
    assert schedule_verify_lens(torch.tensor([[0.5, 0.5, 1.0]]), torch.tensor([0.5]), 9, 0, 4).tolist() == [1]


def test_a_least_length_holds_for_everybody_and_a_most_length_too() -> None:
    confidence = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert schedule_verify_lens(confidence, EPS, 6, 2, 3).tolist() == [2, 3]


def test_a_cut_leaves_the_right_draft_behind_it_as_the_bonus() -> None:
    chain = torch.tensor([[7, 8, 9, 10]])
    accepted, bonus, cut = accept_chain_greedy(chain, torch.tensor([[8, 9, 10, 11]]), int32(2))
    assert (accepted.tolist(), bonus.tolist(), cut.tolist()) == ([1], [9], [2])
    assert build_out_tokens(chain[:, 1:], accepted, bonus).tolist() == [[8, 9, 10, 0]]


# Packed rows


def test_packed_rows_are_strided_again() -> None:
    lens = int32(2, 1, 3)
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    chains = torch.arange(100, 109).view(3, 3)
    window = ragged_verify_window(torch.tensor([3, 1, 2]), table, torch.tensor([0, 4, 7]), lens, chains, 8)
    assert window.verify_ids.tolist() == [100, 101, 103, 106, 107, 108, 0, 0]
    assert window.positions.tolist() == [0, 1, 4, 7, 8, 9, 0, 0]
    assert window.verify_cache_loc.tolist() == [30, 31, 14, 27, 28, 29, 0, 0]
    rows = scatter_compact_to_strided(window.verify_ids[:, None].float(), lens, 3)
    assert rows.flatten().tolist() == [100, 101, 0, 103, 0, 0, 106, 107, 108]
    assert verify_indptr(lens).qo_indptr.tolist() == [0, 2, 3, 6]


@pytest.mark.parametrize(("padded_bs", "expected"), [(2, [2, 8]), (3, [2, 1, 7]), (5, [2, 1, 3, 2, 2])])
def test_rows_that_are_left_over_go_to_requests_that_pad_the_batch(padded_bs: int, expected: list[int]) -> None:
    assert pad_verify_lens(int32(2, 1), 10, padded_bs).tolist() == expected


# What does not fit


ROW, ONE, LENS = torch.tensor([0]), torch.tensor([1]), int32(1)
TABLE = torch.zeros((1, 2), dtype=torch.int32)
CHAIN = torch.tensor([[1, 2]])
HALVES = torch.full((1, 1), 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedule_verify_lens(HALVES, EPS, -1, 1, 2), "budget is -1; allowed: 0 or more"),
        (lambda: schedule_verify_lens(HALVES, EPS, 1, 2, 1), "max_verify_len is 1; allowed: 2 or more"),
        (lambda: schedule_verify_lens(3 * HALVES, EPS, 1, 1, 2), r"confidence\[0, 0\] is 1.5; allowed: 0 to 1"),
        (lambda: pad_verify_lens(int32(2, 1), 2, 2), "num_packed is 2; allowed: 3 or more"),
        (lambda: pad_verify_lens(int32(2, 1), 3, 1), "padded_bs is 1; allowed: 2 or more"),
        (lambda: ragged_verify_window(ROW, TABLE, ONE, int32(2), CHAIN, 2), r"seq_lens \+ verify_lens\[0\] is 3"),
        (lambda: ragged_verify_window(ROW, TABLE, ROW, int32(3), CHAIN, 3), r"verify_lens\[0\] is 3; allowed: 1 to 2"),
        (lambda: ragged_verify_window(ROW, TABLE, ROW, int32(2), CHAIN, 1), "num_packed is 1; allowed: 2 or more"),
        (lambda: scatter_compact_to_strided(HALVES, int32(2), 1), r"verify_lens\[0\] is 2; allowed: 1 to 1"),
        (lambda: commit_inject_layout(ROW, TABLE, ONE, ONE, int32(2), 2), r"prefix_lens \+ commit_lens\[0\] is 3"),
        (lambda: committed_swa_locations(ONE, ONE, LENS, 1), r"cache_loc\[0\] is 1; allowed: 0 to 0"),
        (lambda: accept_chain_greedy(CHAIN, CHAIN, int32(0)), r"verify_lens\[0\] is 0; allowed: 1 to 2"),
        (lambda: build_out_tokens(CHAIN, int32(3), ONE), r"correct_len\[0\] is 3; allowed: 0 to 2"),
        (
            lambda: walk_candidates(CHAIN[None], torch.ones(1, 1, 2, 2), HALVES, 0 * HALVES[0], torch.tensor([False])),
            r"temperatures\[0\] is 0.0; allowed: above 0",
        ),
        (lambda: draft_topk1(HALVES, ONE.clone(), CHAIN.clone(), 2), "step is 2; allowed: 0 to 1"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_table_is_not_looked_at_where_nothing_is_committed() -> None:
    layout = commit_inject_layout(ROW, TABLE + 9, ONE, ONE, int32(0), 3)
    assert (layout.swa_loc.tolist(), layout.positions.tolist()) == ([-1] * 3, [1, 2, 3])
