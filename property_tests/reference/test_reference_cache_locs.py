"""The page table: slots go to and come from the right row and column, and from nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given

from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS
from specsim.reference import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
    unchecked,
)

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Op

ASSIGN = OPS["assign_req_to_token_pool"]
DRAFT = OPS["assign_draft_cache_locs_contiguous"]
EXTEND = OPS["assign_extend_cache_locs"]
STALE = 7_777_777


def segment(case: Case, b: int) -> tuple[int, slice]:
    """Row and columns of request b."""
    start = "seq_lens" if "seq_lens" in case.tensors else "start_offset"
    first = int(case.tensors[start][b])
    width = case.sizes["topk"] * case.sizes["num_steps"]
    last = int(case.tensors["end_offset"][b]) if "end_offset" in case.tensors else first + width
    return int(case.tensors["req_pool_indices"][b]), slice(first, last)


def inside(case: Case) -> torch.Tensor:
    """Which elements of the page table belong to a segment of the batch."""
    mask = torch.zeros_like(case.tensors["req_to_token"], dtype=torch.bool)
    for b in range(case.sizes["bs"]):
        mask[segment(case, b)] = True
    return mask


def with_stale_slots(case: Case) -> Case:
    """The case with every element of the page table that is in no segment replaced."""
    changed = case.clone()
    changed.tensors["req_to_token"][~inside(case)] = STALE
    return changed


def requests(case: Case, which: list[int]) -> Case:
    """The case of some of the requests, in the given order; for the two operations that only read."""
    chosen = case.clone()
    for name in set(case.tensors) - {"req_to_token"}:
        chosen.tensors[name] = case.tensors[name][which]
    slots = sum(columns.stop - columns.start for _, columns in (segment(case, b) for b in which))
    chosen.sizes.update({"bs": len(which), "num_locs": slots, "num_draft_locs": slots})
    return chosen


@given(case=cases(ASSIGN))
def test_assigned_slots_can_be_read_back_from_the_same_segments(case: Case) -> None:
    table = case.tensors["req_to_token"]
    assign_req_to_token_pool(**case.tensors)
    ragged = {name: case.tensors[name] for name in ("req_pool_indices", "start_offset", "end_offset")}
    assert torch.equal(assign_extend_cache_locs(req_to_token=table, **ragged), case.tensors["out_cache_loc"])


@given(case=cases(ASSIGN))
def test_assigning_changes_nothing_outside_the_segments(case: Case) -> None:
    after = ASSIGN.expected(case)["req_to_token"]
    assert torch.equal(after != case.tensors["req_to_token"], inside(case))


@given(case=cases(ASSIGN))
def test_assigning_a_batch_is_assigning_its_requests_one_by_one(case: Case) -> None:
    together = ASSIGN.expected(case)["req_to_token"]
    table, slots = case.tensors["req_to_token"].clone(), case.tensors["out_cache_loc"]
    rows, starts, ends = (case.tensors[name] for name in ("req_pool_indices", "start_offset", "end_offset"))
    for own, row, start, end in zip(
        slots.split((ends - starts).tolist()), rows.split(1), starts.split(1), ends.split(1), strict=True
    ):
        assign_req_to_token_pool(row, table, start, end, own)
    assert torch.equal(together, table)


@given(case=cases(DRAFT))
def test_a_stale_slot_is_never_read_for_the_draft(case: Case) -> None:
    slots = DRAFT.expected(case)["out_cache_loc"]
    assert torch.equal(slots, DRAFT.expected(with_stale_slots(case))["out_cache_loc"])
    assert STALE not in slots


@given(case=cases(EXTEND))
def test_a_stale_slot_is_never_read_for_the_extension(case: Case) -> None:
    slots = EXTEND.expected(case)["out_cache_loc"]
    assert torch.equal(slots, EXTEND.expected(with_stale_slots(case))["out_cache_loc"])
    assert STALE not in slots


@pytest.mark.parametrize("op", [DRAFT, EXTEND], ids=lambda op: op.name)
def test_permuting_the_requests_permutes_their_slots(op: Op) -> None:
    @given(case=cases(op))
    def holds(case: Case) -> None:
        backwards = list(range(case.sizes["bs"]))[::-1]
        widths = [columns.stop - columns.start for _, columns in (segment(case, b) for b in backwards[::-1])]
        own = op.expected(case)["out_cache_loc"].split(widths)
        permuted = op.expected(requests(case, backwards))["out_cache_loc"]
        assert torch.equal(permuted, torch.cat([own[b] for b in backwards]))

    holds()


@pytest.mark.parametrize("op", [DRAFT, EXTEND], ids=lambda op: op.name)
def test_a_request_gets_the_same_slots_in_any_batch(op: Op) -> None:
    @given(case=cases(op))
    def holds(case: Case) -> None:
        alone = [op.expected(requests(case, [b]))["out_cache_loc"] for b in range(case.sizes["bs"])]
        assert torch.equal(op.expected(case)["out_cache_loc"], torch.cat(alone))

    holds()


@given(case=cases(DRAFT))
def test_draft_slots_are_the_extension_by_the_width_of_the_draft(case: Case) -> None:
    rows, table, seq_lens = (case.tensors[name] for name in ("req_pool_indices", "req_to_token", "seq_lens"))
    width = case.sizes["topk"] * case.sizes["num_steps"]
    extension = assign_extend_cache_locs(rows, table, seq_lens, seq_lens + width)
    assert torch.equal(DRAFT.expected(case)["out_cache_loc"], extension)


def table() -> torch.Tensor:
    return torch.arange(1, 31, dtype=torch.int32).view(3, 10)


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ints(1, 3), table(), ints(0, 0), ints(1, 1)), r"req_pool_indices\[1\] is 3; allowed: 0 to 2"),
        ((ints(1, 2), table(), ints(0, 0), ints(1, 11)), r"end_offset\[1\] is 11; allowed: 0 to 10"),
        ((ints(1, 2), table(), ints(0, -1), ints(1, 1)), r"start_offset\[1\] is -1; allowed: 0 to 10"),
        ((ints(1, 2), table(), ints(0, 4), ints(1, 3)), r"end_offset\[1\] is 3; allowed: start_offset"),
        ((ints(1, 2), table(), ints(0), ints(1, 3)), r"start_offset has shape \[1\]; allowed: \[bs=2\]"),
        (
            (ints(1, 2), table().long(), ints(0, 0), ints(1, 3)),
            r"req_to_token has dtype torch.int64; allowed: torch.int32",
        ),
        (
            (ints(1, 2), table()[0], ints(0, 0), ints(1, 3)),
            r"req_to_token has shape \[10\]; allowed: \[pool_rows, pool_len\]",
        ),
    ],
)
def test_wrong_segments_are_refused_with_argument_value_and_what_is_allowed(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign_extend_cache_locs(*arguments)


@pytest.mark.parametrize(
    ("rows", "slots", "message"),
    [
        (ints(2, 2), ints(7, 8, 9), r"req_pool_indices holds 2 more than once"),
        (ints(1, 2), ints(7, 8), r"out_cache_loc has shape \[2\]; allowed: \[num_locs=3\]"),
        (ints(1, 2), ints(7, 8, 2**31), r"out_cache_loc\[2\] is 2147483648; allowed: 0 to 2147483647"),
    ],
)
def test_wrong_assignments_are_refused_and_change_nothing(rows: Any, slots: Any, message: str) -> None:
    before = table()
    with pytest.raises(ValueError, match=message):
        assign_req_to_token_pool(rows, before, ints(0, 3), ints(1, 5), slots)
    assert torch.equal(before, table())


def test_a_draft_that_leaves_the_row_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"seq_lens\[1\] is 5; allowed: 0 to 4 \(pool_len 10 less topk \* num_steps 6\)"
    ):
        assign_draft_cache_locs_contiguous(ints(1, 2), table(), ints(4, 5), topk=2, num_steps=3)
    with pytest.raises(ValueError, match=r"topk is 0; allowed: 1 or more"):
        assign_draft_cache_locs_contiguous(ints(1, 2), table(), ints(4, 5), topk=0, num_steps=3)


def test_checks_can_be_switched_off_and_come_back() -> None:
    duplicates = (ints(2, 2), ints(0, 3), ints(1, 5))
    rows, starts, ends = duplicates
    with unchecked():
        assign_req_to_token_pool(rows, table(), starts, ends, ints(7, 8, 9))
    with pytest.raises(ValueError, match="more than once"):
        assign_req_to_token_pool(rows, table(), starts, ends, ints(7, 8, 9))


def test_an_empty_batch_has_no_slots() -> None:
    none = ints()
    assert assign_extend_cache_locs(none, table(), none, none).shape == (0,)
    assert assign_draft_cache_locs_contiguous(none, table(), none, 2, 3).shape == (0,)
