"""A kernel whose programs race is wrong, whatever order they happen to run in."""

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
from specsim.tiers.ops.rules import DOES_NOT_RACE
from specsim.tiers.ops.run import CaseViolation
from specsim.tiers.ops.suite import SuiteLimits, check_subject
from specsim.verdict import Rule

OP = OPS["fill_bonus_tokens"]


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


def broken(how: int) -> dict[Rule, CaseViolation]:
    """What the smallest case that was found breaks."""
    implementation: Callable[..., None] = partial(bonus_tokens, how)
    subject = Subject(OP.name, "kernel", "kernel:racing", partial(OP.call, implementation))
    found = check_subject(OP, subject, seed=1, limits=SuiteLimits(40)).counterexample
    return {violation.rule: violation for violation in found.outcome.violations} if found and found.outcome else {}


def test_programs_that_touch_elements_of_their_own_do_not_race() -> None:
    assert broken(0) == {}


@pytest.mark.parametrize("how", [1, 2])
def test_programs_race_where_one_writes_what_another_reads_or_writes(how: int) -> None:
    assert "for element 0 of bonus of two programs of _racing_kernel" in broken(how)[DOES_NOT_RACE].actual


def test_a_race_that_no_order_of_whole_programs_shows_is_found() -> None:
    assert broken(1).keys() == {DOES_NOT_RACE}
    assert broken(2).keys() > {DOES_NOT_RACE}
