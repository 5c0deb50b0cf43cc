"""A kernel whose programs race, or lanes of a program, is wrong, whatever order they happen to run in."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.tiers.ops.rules import DOES_NOT_RACE, WARPS_DO_NOT_RACE
from specsim.tiers.ops.run import CaseViolation
from specsim.tiers.ops.suite import SuiteLimits, check_subject
from specsim.verdict import Rule


@triton.jit
def _racing_kernel(
    predict: Any, accept_index: Any, accept_lens: Any, bonus: Any, width: Any, HOW: tl.constexpr
) -> None:
    row = tl.program_id(0)
    place = tl.load(accept_index + row * width + tl.load(accept_lens + row) - 1)
    tl.store(bonus + row, tl.load(predict + place))
    if HOW == 1:  # gives the first row back what it had: lost if the first program stores between load and store
        tl.store(bonus, tl.load(bonus))
    if HOW == 2:  # the last program to run has the first row
        tl.store(bonus, tl.load(predict + place))


def bonus_tokens(
    how: int, predict: torch.Tensor, accept_index: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor
) -> None:
    _racing_kernel[(len(accept_lens),)](
        predict, accept_index, accept_lens, bonus_tokens, accept_index.shape[1], HOW=how
    )


@triton.jit
def _shifting_kernel(
    ids: Any, rows: Any, starts: Any, lasts: Any, tokens: Any, counter: Any, BLOCK: tl.constexpr, HOW: tl.constexpr
) -> None:
    request = tl.program_id(0)
    start, last = tl.load(starts + request), tl.load(lasts + request)
    if tl.load(rows + request) < 0:
        return
    for first in range(start + 1, last + 1, BLOCK):
        place = first + tl.arange(0, BLOCK)
        moved = tl.load(ids + place, mask=place <= last)
        if HOW != 1:
            tl.debug_barrier()
        tl.store(ids + place - 1, moved, mask=place <= last)
        if HOW != 1:
            tl.debug_barrier()
    if HOW == 2:  # counted up: each thread has what it read, and one writes
        tl.store(counter + request, tl.load(counter + request) + 1)
    tl.store(ids + last, tl.load(tokens + request).to(tl.int32))


def shifted(
    how: int,
    draft_input_ids: torch.Tensor,
    draft_embeds: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    last_token_indices: torch.Tensor,
    next_tokens: torch.Tensor,
    next_embeds: torch.Tensor,
    num_warps: int = 4,
) -> None:
    """Tokens by a kernel, embeddings by the reference."""
    of_batch = (idx_mapping, query_start_loc, last_token_indices)
    OPS["shift_draft_inputs"].reference(draft_input_ids.clone(), draft_embeds, *of_batch, next_tokens, next_embeds)
    counter = torch.zeros_like(idx_mapping)
    _shifting_kernel[(len(idx_mapping),)](
        draft_input_ids, *of_batch, next_tokens, counter, BLOCK=64, HOW=how, num_warps=num_warps
    )


def broken(how: int) -> dict[Rule, CaseViolation]:
    """What the smallest case that was found breaks."""
    return broken_by("fill_bonus_tokens", partial(bonus_tokens, how))


def broken_by(name: str, implementation: Callable[..., None]) -> dict[Rule, CaseViolation]:
    op = OPS[name]
    subject = Subject(name, "kernel", "kernel:racing", partial(op.call, implementation))
    found = check_subject(op, subject, seed=1, limits=SuiteLimits(40)).counterexample
    return {violation.rule: violation for violation in found.outcome.violations} if found and found.outcome else {}


def test_programs_that_touch_elements_of_their_own_do_not_race() -> None:
    assert broken(0) == {}


@pytest.mark.parametrize("how", [1, 2])
def test_programs_race_where_one_writes_what_another_reads_or_writes(how: int) -> None:
    assert "for element 0 of bonus of two programs of _racing_kernel" in broken(how)[DOES_NOT_RACE].actual


def test_a_race_that_no_order_of_whole_programs_shows_is_found() -> None:
    assert broken(1).keys() == {DOES_NOT_RACE}
    assert broken(2).keys() > {DOES_NOT_RACE}


def test_warps_race_where_a_block_moves_in_place_without_a_barrier() -> None:
    """Each result is right, as the lanes of a block run at once here; on a GPU one warp writes what another reads."""
    (violation,) = broken_by("shift_draft_inputs", partial(shifted, 1)).values()
    assert violation.rule is WARPS_DO_NOT_RACE
    assert "of two warps, no barrier between, of a program of _shifting_kernel" in violation.actual


@pytest.mark.parametrize(("how", "num_warps"), [(0, 4), (2, 4), (1, 1)])
def test_warps_with_barriers_between_do_not_race_nor_a_number_that_is_counted_up_nor_one_warp(
    how: int, num_warps: int
) -> None:
    assert broken_by("shift_draft_inputs", partial(shifted, how, num_warps=num_warps)) == {}
