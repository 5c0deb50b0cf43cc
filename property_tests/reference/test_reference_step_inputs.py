"""Inputs of a step at their edges: what is refused, and a batch through one step after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specsim.reference.step_inputs import (
    combine_sampled_and_draft_tokens,
    compute_slot_mappings,
    expand_idx_mapping,
    flatten_sampled,
    gather_block_tables,
    gather_draft_sampled,
    get_num_sampled_and_rejected,
    post_update,
    post_update_num_computed_tokens,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)

ROW = torch.tensor([1], dtype=torch.int32)
PROMPT = [7, 8, 9]
NUM_STEPS = 2


def starts(*ends: int) -> torch.Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32)


class State:
    """One request in the second of two rows, and what the steps make of it."""

    def __init__(self) -> None:
        self.all_token_ids = torch.zeros((2, 12), dtype=torch.int32)
        self.all_token_ids[1, : len(PROMPT)] = torch.tensor(PROMPT, dtype=torch.int32)
        self.prefill_len = torch.tensor([0, len(PROMPT)], dtype=torch.int32)
        self.num_computed_tokens = torch.zeros(2, dtype=torch.int32)
        self.total_len = self.prefill_len.clone()
        self.last_sampled_tokens = torch.zeros(2, dtype=torch.int64)
        self.draft_tokens = torch.zeros((2, NUM_STEPS), dtype=torch.int64)
        self.next_prefill_tokens = torch.zeros((1, 2), dtype=torch.int32)
        self.output_bin_counts = torch.zeros((2, 64), dtype=torch.int32)

    def step(self, scheduled: int, drafts: list[int], sampled: list[int]) -> tuple[list[int], list[int], list[int]]:
        """The inputs, positions and what is verified of one step, which samples these tokens."""
        query, logits = starts(scheduled), starts(1 + len(drafts))
        self.draft_tokens[1, : len(drafts)] = torch.tensor(drafts, dtype=torch.int64)
        input_ids = torch.zeros(scheduled, dtype=torch.int32)
        of_state = (self.all_token_ids, self.prefill_len, self.num_computed_tokens)
        prepare_prefill_inputs(input_ids, self.next_prefill_tokens, ROW, query, *of_state)
        positions, lens = prepare_pos_seq_lens(ROW, query, self.num_computed_tokens)
        rows = (query, lens[:1], self.prefill_len, self.draft_tokens, logits)
        indices = combine_sampled_and_draft_tokens(input_ids, ROW, self.last_sampled_tokens, *rows, 1)
        expanded = expand_idx_mapping(ROW, logits)
        verified, _pos = gather_draft_sampled(input_ids, positions, indices, *expanded, self.prefill_len)
        count = torch.tensor([len(sampled)], dtype=torch.int32)
        tokens = torch.tensor([sampled + [0] * (NUM_STEPS + 1 - len(sampled))])
        assert flatten_sampled(tokens, count, logits).tolist() == (sampled + [0] * NUM_STEPS)[: 1 + len(drafts)]
        rejected = get_num_sampled_and_rejected(count, lens[:1], logits, ROW, self.prefill_len)
        state = (self.num_computed_tokens, self.last_sampled_tokens, self.output_bin_counts)
        post_update(ROW, *state, tokens, count, rejected, query, self.all_token_ids, self.total_len)
        return input_ids.tolist(), positions.tolist(), verified.tolist()


def test_a_request_goes_through_its_prompt_in_chunks_and_then_decodes_with_drafts() -> None:
    state = State()
    assert state.step(2, [], [40]) == ([7, 8], [0, 1], [8])  # what is sampled within the prompt is not kept
    assert state.next_prefill_tokens.tolist() == [[0, 9]]
    assert state.total_len.tolist() == [0, 3]
    assert state.step(1, [], [20]) == ([9], [2], [9])
    assert state.step(3, [21, 30], [21, 22]) == ([20, 21, 30], [3, 4, 5], [20, 21, 30])
    assert state.num_computed_tokens.tolist() == [0, 5]  # the rejected draft's KV is written again
    assert state.step(1, [], [23]) == ([22], [5], [22])
    assert state.all_token_ids[1, :7].tolist() == [*PROMPT, 20, 21, 22, 23]
    assert state.output_bin_counts[1].nonzero().flatten().tolist() == [20, 21, 22, 23]
    assert not state.all_token_ids[0].any()


def test_drafts_right_behind_a_prompt_are_placeholders_and_its_last_token_stays() -> None:
    state = State()
    state.num_computed_tokens[1] = len(PROMPT) - 1
    inputs, positions, verified = state.step(1 + NUM_STEPS, [50, 51], [20])
    assert (inputs, positions) == ([9, 50, 51], [2, 3, 4])
    assert verified == [9, -1, -1]
    assert state.num_computed_tokens.tolist() == [0, 3]


def test_a_step_without_logits_counts_its_tokens() -> None:
    computed = torch.tensor([4, 5], dtype=torch.int32)
    post_update_num_computed_tokens(ROW, computed, starts(3))
    assert computed.tolist() == [4, 8]


FALLING = torch.tensor([1, 0], dtype=torch.int32)
ONE, ONE_LONG = torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.int64)
TABLES = torch.ones((1, 2, 3), dtype=torch.int32)
TRUE = torch.tensor([True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expand_idx_mapping(ROW, FALLING), r"cu_num_logits, from one to the next,\[0\] is -1"),
        (lambda: prepare_pos_seq_lens(ROW, FALLING, ONE), r"query_start_loc, from one to the next,\[0\] is -1"),
        (lambda: flatten_sampled(ONE_LONG[None], ONE, FALLING), "cu_num_logits, from one to the next"),
        (lambda: gather_block_tables(ROW, TABLES, ONE.expand(1, 2), ONE.expand(2), ONE, ONE, 0), "padded_bs is 0"),
        (
            lambda: compute_slot_mappings(ROW, starts(1), 3 * ONE_LONG, TABLES, ONE, TRUE, 1),
            r"positions\[0\] is 3; allowed: within the blocks of a table",
        ),
        (lambda: compute_slot_mappings(ROW, starts(1), ONE_LONG, TABLES, ONE, TRUE, 0), "padded_tokens is 0"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_tokens_behind_the_end_of_a_row_are_refused() -> None:
    state = State()
    state.total_len[1] = 12
    with pytest.raises(ValueError, match=r"num_sampled\[0\] is 1; allowed: as many as a row has room for"):
        state.step(3, [], [20])
