"""What a draft model's passes read: windows beside the start of a request, tables, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specsim.reference.draft_inputs import (
    generate_draft_decode_window_kv_indices,
    prepare_draft_extend_inputs,
    prepare_draft_extend_layout,
    prepare_draft_extend_lengths,
    rebuild_compact_draft_req_to_token,
    widened_draft_extend_locs,
)
from specsim.reference.kv import generate_draft_decode_kv_indices

ROW, TABLE = torch.tensor([0]), torch.arange(10, 18, dtype=torch.int32)[None]


def long(*values: int) -> Tensor:
    return torch.tensor(values)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_an_extension_goes_on_from_the_last_accepted_node() -> None:
    inputs = prepare_draft_extend_inputs(int32(1, 3), int32(7, 8, 9, 4, 5, 6), 3)
    assert inputs.num_correct_drafts.tolist() == [0, 2]
    assert inputs.select_index.tolist() == [0, 5]
    assert inputs.input_ids.tolist() == [7, 8, 9, 4, 5, 6]
    layout = prepare_draft_extend_layout(long(0, 5), 3)
    assert layout.positions.tolist() == [0, 1, 2, 5, 6, 7]
    assert layout.extend_start_loc.tolist() == [0, 3]


def test_no_more_is_repeated_than_a_request_has() -> None:
    lengths = prepare_draft_extend_lengths(long(1, 5), 3, 2)
    assert (lengths.prefix_lens.tolist(), lengths.post_lens.tolist()) == ([0, 3], [4, 8])


@pytest.mark.parametrize(
    ("length", "held", "warmup", "slots", "positions"),
    [
        (4, 2, 0, [12, 13, 14, 15], [2, 3, 4, 5]),
        (4, 2, 1, [0, 13, 14, 15], [2, 3, 4, 5]),
        (4, 1, 1, [0, 0, 14, 15], [0, 3, 4, 5]),
        (4, 0, 3, [0, 0, 14, 15], [0, 0, 4, 5]),
        (1, 2, 0, [0, 10, 11, 12], [0, 0, 1, 2]),
        (0, 2, 0, [0, 0, 10, 11], [0, 0, 0, 1]),
    ],
)
def test_rows_before_an_extension_are_those_that_are_known(
    length: int, held: int, warmup: int, slots: list[int], positions: list[int]
) -> None:
    found = widened_draft_extend_locs(long(length), ROW, TABLE, int32(held), 2, 2, warmup)
    assert (found.out_cache_loc.tolist(), found.positions.tolist()) == (slots, positions)


def test_a_compact_row_has_the_newest_tokens_and_the_block() -> None:
    draft = torch.full((1, 5), -1, dtype=torch.int32)
    rebuild_compact_draft_req_to_token(draft, TABLE, ROW, long(3), long(2), long(90, 91)[None])
    assert draft.tolist() == [[13, 14, 90, 91, -1]]


def test_a_window_that_is_long_enough_changes_nothing() -> None:
    whole = generate_draft_decode_kv_indices(ROW, TABLE, long(3), 1, 3, 1)
    same = generate_draft_decode_window_kv_indices(ROW, TABLE, long(3), 1, 3, 1, 6)
    assert all(torch.equal(a, b) for a, b in zip(whole, same, strict=True))
    last = generate_draft_decode_window_kv_indices(ROW, TABLE, long(3), 1, 3, 1, 2)
    assert last.kv_indptr.tolist() == [[0, 2]] * 3
    assert last.kv_indices[:, :2].tolist() == [[12, 13], [13, 14], [14, 15]]


BLOCK, DRAFT = long(1, 2)[None], torch.zeros((1, 3), dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prepare_draft_extend_inputs(int32(3), int32(1, 2), 2), r"accept_lens\[0\] is 3; allowed: 1 to 2"),
        (lambda: prepare_draft_extend_lengths(long(1), 2, -1), "front_offset is -1; allowed: 0 or more"),
        (lambda: widened_draft_extend_locs(long(7), ROW, TABLE, int32(0), 2, 1, 0), r"num_draft_tokens\[0\] is 9"),
        (lambda: widened_draft_extend_locs(long(1), ROW, TABLE, int32(2), 2, 1, 0), r"stash_valid_lens\[0\] is 2"),
        (lambda: rebuild_compact_draft_req_to_token(DRAFT, TABLE, ROW, long(0), long(2), BLOCK), "draft_prefix_lens"),
        (lambda: rebuild_compact_draft_req_to_token(DRAFT, TABLE, ROW, long(8), long(1), BLOCK), "suffix_start"),
        (lambda: generate_draft_decode_window_kv_indices(ROW, TABLE, long(6), 1, 3, 1, 2), "seq_lens"),
        (lambda: generate_draft_decode_window_kv_indices(ROW, TABLE, long(1), 1, 3, 1, 0), "window is 0"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
