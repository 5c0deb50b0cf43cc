"""What follows the walk: no token, length, position or slot of a request comes from another one, or from padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.naive.accepted import (
    gather_accept_tokens_naive,
)
from specsim.choices.chooser import replayed, seeded
from specsim.contracts.accepted import OPS as FAMILY
from specsim.contracts.contract import Case, Role
from specsim.contracts.hypothesis_cases import cases
from specsim.reference.accepted import (
    create_extend_after_decode,
    filter_finished_cache_loc,
    gather_accept_tokens,
    gather_rows,
    get_target_cache_loc,
    verify_commit_outputs,
    write_req_to_token_pool,
)
from specsim.reference.cache_locs import assign_extend_cache_locs

if TYPE_CHECKING:
    from specsim.contracts.contract import Op, Tensors

OPS = {op.name: op for op in FAMILY}
GATHER, COMMIT, EXTEND = OPS["gather_accept_tokens"], OPS["verify_commit_outputs"], OPS["create_extend_after_decode"]
TARGET, FILTER, WRITE = OPS["get_target_cache_loc"], OPS["filter_finished_cache_loc"], OPS["write_req_to_token_pool"]
ROWS = OPS["gather_rows"]
every_op = pytest.mark.parametrize("op", FAMILY, ids=lambda op: op.name)

BULK_CASES = 200
BATCH_RELATIVE = {"accept_index", "req_pool_indices", "indices"}  # numbers that keep the requests of a batch apart


def segment_lens(op: Op, case: Case) -> dict[str, torch.Tensor]:
    """How many entries of each flat argument belong to each request."""
    tensors, sizes = case.tensors, case.sizes
    nodes = torch.full((sizes["bs"],), sizes["num_draft_tokens"])
    if op is EXTEND:
        return {"accept_tokens": tensors["accept_lens"], "positions": tensors["accept_lens"]}
    if op is TARGET:
        freed = tensors["to_free_num_slots"]
        return {"out_cache_loc": nodes, "tgt_cache_loc": tensors["accept_token_num"] + 1, "to_free_slots": freed}
    if op is FILTER:
        kept = tensors["num_accept_tokens_filter"]
        return {"tgt_cache_loc": tensors["accept_token_num"] + 1, "out_cache_loc": kept}
    if op is WRITE:
        new = tensors["seq_lens"] - tensors["prefix_lens"]
        return {"prefix_indices": tensors["prefix_lens"], "out_cache_loc": new}
    return {"predicts": nodes, "predict": nodes}


def by_request(op: Op, case: Case, tensors: Tensors) -> list[Tensors]:
    """What of each tensor belongs to each request; what all of them share is left out."""
    lens = segment_lens(op, case)
    shares: list[Tensors] = [{} for _ in range(case.sizes["bs"])]
    for arg in op.tensor_args:
        if arg.name in tensors and (arg.name in lens or arg.shape[0] == "bs"):
            tensor = tensors[arg.name]
            parts = tensor.split(lens[arg.name].tolist()) if arg.name in lens else tensor.unbind(0)
            for share, part in zip(shares, parts, strict=True):
                share[arg.name] = part
    return shares


def requests(op: Op, case: Case, which: list[int]) -> Case:
    """The case of some of the requests, in the given order, with their nodes numbered anew."""
    chosen, ndt = case.clone(), case.sizes["num_draft_tokens"]
    shares, lens = by_request(op, case, case.tensors), segment_lens(op, case)
    for name in shares[0]:
        parts = [shares[b][name] for b in which]
        if name == "accept_index":
            parts = [
                torch.where(part < 0, part, part + (b - was) * ndt)
                for b, (was, part) in enumerate(zip(which, parts, strict=True))
            ]
        chosen.tensors[name] = torch.cat(parts) if name in lens else torch.stack(parts)
    chosen.sizes["bs"] = len(which)
    counted = {
        dim: sum(int(lens[a.name][b]) for b in which) for a in op.tensor_args if a.name in lens for dim in a.shape
    }
    chosen.sizes.update({dim: count for dim, count in counted.items() if isinstance(dim, str)})
    return chosen


def expected_by_request(op: Op, case: Case) -> list[dict[str, list[int]]]:
    expected = op.expected(case)
    if op is WRITE:
        rows = case.tensors["req_pool_indices"].tolist()
        ends = case.tensors["seq_lens"].tolist()
        return [{"row": expected["req_to_token"][row, :end].tolist()} for row, end in zip(rows, ends, strict=True)]
    return [{name: part.tolist() for name, part in share.items()} for share in by_request(op, case, expected)]


@every_op
@given(data=st.data())
def test_permuting_the_requests_permutes_the_result(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    order = data.draw(st.permutations(range(case.sizes["bs"])))
    own = expected_by_request(op, case)
    assert expected_by_request(op, requests(op, case, order)) == [own[b] for b in order]


@every_op
@given(data=st.data())
def test_a_request_gets_the_same_in_any_batch(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    bs = case.sizes["bs"]
    cut = data.draw(st.integers(0, bs - 1))
    parts = [list(range(cut + 1)), list(range(cut + 1, bs))]
    split = [share for part in parts if part for share in expected_by_request(op, requests(op, case, part))]
    assert split == expected_by_request(op, case)


def bulk_cases(op: Op) -> list[tuple[Case, dict[str, int]]]:
    shapes = [op.cases.draw_shape(replayed(()))] + [op.cases.draw_shape(seeded(3, op.name, k)) for k in range(4)]
    return [(op.cases.make(torch.arange(7, 7 + BULK_CASES), shape), shape) for shape in shapes]


@every_op
def test_a_case_out_of_a_bulk_is_made_again_alone(op: Op) -> None:
    for case, shape in bulk_cases(op):
        for b in (0, 1, BULK_CASES - 1):
            alone = op.cases.make(torch.tensor([7 + b]), shape)
            for arg in op.tensor_args:
                if arg.role is not Role.OUT and arg.shape[0] == "bs" and arg.name not in BATCH_RELATIVE:
                    assert torch.equal(alone.tensors[arg.name][0], case.tensors[arg.name][b]), arg.name
            if op in (GATHER, COMMIT):
                path, ndt = case.tensors["accept_index"][b], case.sizes["num_draft_tokens"]
                assert torch.equal(alone.tensors["accept_index"][0], torch.where(path < 0, path, path - b * ndt))


def test_bulk_cases_reach_short_and_long_paths_padding_finished_requests_and_page_boundaries() -> None:
    for case, _ in bulk_cases(GATHER):
        lens = (case.tensors["accept_index"] >= 0).sum(1).bincount(minlength=8)
        longest = min(case.sizes["accept_width"], case.sizes["num_draft_tokens"])
        assert min(lens[0], lens[1], lens[longest]) >= 10
    for case, _ in bulk_cases(FILTER):
        kept, accepted = case.tensors["num_accept_tokens_filter"], case.tensors["accept_token_num"]
        assert min(int((kept == 0).sum()), int((kept == accepted + 1).sum())) >= 20
    for case, _ in bulk_cases(COMMIT):
        assert {0, 1} <= set(case.tensors["seq_lens"].tolist())
    for case, _ in bulk_cases(WRITE):
        assert int((case.tensors["seq_lens"] == case.tensors["prefix_lens"]).sum()) >= 20
        assert int((case.tensors["prefix_lens"] == 0).sum()) >= 20


@given(case=cases(GATHER))
def test_padding_is_never_used_as_an_index(case: Case) -> None:
    used = case.tensors["accept_index"].flatten().tolist()
    other = case.clone()
    for node in set(range(case.sizes["num_nodes"])) - set(used):
        other.tensors["predicts"][node] = -7
    output = GATHER.expected(other)["output_token_ids"]
    assert torch.equal(output, GATHER.expected(case)["output_token_ids"])
    assert torch.equal(output == -1, case.tensors["accept_index"] == -1)


@given(case=cases(COMMIT))
def test_the_bonus_is_the_last_emitted_token_and_the_length_grows_by_the_number_of_them(case: Case) -> None:
    result = COMMIT.expected(case)
    emitted = gather_accept_tokens(case.tensors["predict"], case.tensors["accept_index"]).tolist()
    tokens = [[token for token in row if token != -1] for row in emitted]
    assert result["bonus_tokens"].tolist() == [row[-1] for row in tokens]
    assert result["new_seq_lens"].tolist() == [
        before + len(row) for before, row in zip(case.tensors["seq_lens"].tolist(), tokens, strict=True)
    ]


@given(case=cases(COMMIT))
def test_the_draft_model_extends_over_what_verification_committed(case: Case) -> None:
    committed = COMMIT.expected(case)
    emitted = gather_accept_tokens(case.tensors["predict"], case.tensors["accept_index"])
    extend = create_extend_after_decode(emitted[emitted >= 0], committed["new_seq_lens"], case.tensors["accept_lens"])
    assert torch.equal(extend.bonus_tokens, committed["bonus_tokens"])
    segments = extend.positions.split(case.tensors["accept_lens"].tolist())
    bounds = zip(case.tensors["seq_lens"].tolist(), committed["new_seq_lens"].tolist(), strict=True)
    assert [segment.tolist() for segment in segments] == [list(range(start, end)) for start, end in bounds]


@given(case=cases(TARGET))
def test_no_slot_is_both_kept_and_freed_and_a_freed_one_shares_no_page_with_a_kept_one(case: Case) -> None:
    ndt, page_size = case.sizes["num_draft_tokens"], case.sizes["page_size"]
    for share, result in zip(by_request(TARGET, case, case.tensors), expected_by_request(TARGET, case), strict=True):
        slots, accepted = share["out_cache_loc"].tolist(), int(share["accept_token_num"])
        between = slots[accepted + 1 : ndt - int(share["to_free_num_slots"])]
        assert result["tgt_cache_loc"] + between + result["to_free_slots"] == slots
        assert len(between) < page_size


@given(case=cases(FILTER))
def test_what_is_kept_is_the_front_of_what_was_there(case: Case) -> None:
    shares = by_request(FILTER, case, case.tensors)
    for share, result in zip(shares, expected_by_request(FILTER, case), strict=True):
        count = int(share["num_accept_tokens_filter"])
        assert result["out_cache_loc"] == share["tgt_cache_loc"].tolist()[:count]
    everything = filter_finished_cache_loc(
        case.tensors["tgt_cache_loc"], case.tensors["accept_token_num"], case.tensors["accept_token_num"] + 1
    )
    assert torch.equal(everything, case.tensors["tgt_cache_loc"])


@given(case=cases(WRITE))
def test_a_row_reads_back_as_its_prefix_and_its_new_slots_and_nothing_else_changes(case: Case) -> None:
    tensors = case.tensors
    table, rows = WRITE.expected(case)["req_to_token"], tensors["req_pool_indices"]
    zeros = torch.zeros_like(tensors["prefix_lens"])
    prefix = assign_extend_cache_locs(rows, table, zeros, tensors["prefix_lens"])
    new = assign_extend_cache_locs(rows, table, tensors["prefix_lens"], tensors["seq_lens"])
    assert torch.equal(prefix, tensors["prefix_indices"])
    assert torch.equal(new, tensors["out_cache_loc"])
    written = torch.zeros_like(table, dtype=torch.bool)
    for row, end in zip(rows.tolist(), tensors["seq_lens"].tolist(), strict=True):
        written[row, :end] = True
    assert torch.equal(table[~written], tensors["req_to_token"][~written])
    assert not bool((table == tensors["req_to_token"])[written].any())


@given(case=cases(ROWS))
def test_what_was_stored_by_row_is_picked_up_by_row(case: Case) -> None:
    rows, gathered = case.tensors["indices"], ROWS.expected(case)
    for name in ("topk_p", "topk_index", "hidden_states"):
        stored = torch.zeros_like(case.tensors[f"{name}_buf"])
        stored[rows] = gathered[name]
        assert torch.equal(stored[rows], case.tensors[f"{name}_buf"][rows])
    assert gathered["bonus_tokens"].tolist() == [case.tensors["output_tokens_buf"][row] for row in rows.tolist()]


def test_float64_stays_float64() -> None:
    rows, double = torch.tensor([1, 0]), torch.eye(2, dtype=torch.float64)
    gathered = gather_rows(rows, double, torch.eye(2, dtype=torch.int64), rows, double)
    assert gathered.topk_p.dtype == gathered.hidden_states.dtype == torch.float64


@pytest.mark.parametrize("gather", [gather_accept_tokens, gather_accept_tokens_naive])
def test_an_idle_batch_emits_nothing(gather: Callable[..., Any]) -> None:
    none = torch.zeros((0,), dtype=torch.int32)
    assert gather(none, none.view(0, 3)).shape == (0, 3)


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def int64(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gather_accept_tokens(int32(5, 6), int32([0, 2])), r"accept_index\[0, 1\] is 2; allowed: -1 to 1"),
        (
            lambda: gather_accept_tokens(int32(5, 6), int32([0, -1, 1])),
            r"accept_index\[0, 2\] is 1; allowed: -1 after the first -1",
        ),
        (
            lambda: gather_accept_tokens(int64(5, 6), int32([0, 1])),
            r"predicts has dtype torch.int64; allowed: torch.int32",
        ),
        (
            lambda: verify_commit_outputs(int32(5), int32([0]), int32(2), int64(9)),
            r"accept_lens\[0\] is 2; allowed: 1 to 1",
        ),
        (
            lambda: verify_commit_outputs(int32(5), int32([0]), int32(1), int64(-1)),
            r"seq_lens\[0\] is -1; allowed: 0 or more",
        ),
        (
            lambda: create_extend_after_decode(int32(5, 6), int64(7, 0), int32(1, 1)),
            r"seq_lens\[1\] is 0; allowed: accept_lens of the request or more",
        ),
        (
            lambda: create_extend_after_decode(int32(5, 6), int64(7, 7), int32(2, 0)),
            r"accept_lens\[1\] is 0; allowed: 1 or more",
        ),
        (
            lambda: create_extend_after_decode(int32(5, 6), int64(7), int32(1)),
            r"accept_tokens has shape \[2\]; allowed: \[num_tokens=1\]",
        ),
        (
            lambda: get_target_cache_loc(int32(1), int64(2), int64(1, 2, 3), 3),
            r"to_free_num_slots\[0\] is 2; allowed: 0 to num_draft_tokens - 1 - accept_token_num",
        ),
        (
            lambda: get_target_cache_loc(int32(3), int64(0), int64(1, 2, 3), 3),
            r"accept_token_num\[0\] is 3; allowed: 0 to 2",
        ),
        (
            lambda: filter_finished_cache_loc(int64(1, 2), int32(1), int32(3)),
            r"num_accept_tokens_filter\[0\] is 3; allowed: 0 to accept_token_num \+ 1",
        ),
        (
            lambda: filter_finished_cache_loc(int64(1, 2), int32(2), int32(1)),
            r"tgt_cache_loc has shape \[2\]; allowed: \[num_targets=3\]",
        ),
        (
            lambda: write_req_to_token_pool(
                torch.zeros(2, 3, dtype=torch.int32), int64(1), int64(4), int64(1), int64(4), int64(5, 6, 7)
            ),
            r"seq_lens\[0\] is 4; allowed: prefix_lens of the request to 3",
        ),
        (
            lambda: write_req_to_token_pool(
                torch.zeros(2, 3, dtype=torch.int32), int64(1, 1), int64(4, 4), int64(1, 1), int64(1, 1), int64()
            ),
            r"req_pool_indices holds 1 more than once",
        ),
        (
            lambda: write_req_to_token_pool(
                torch.zeros(2, 3, dtype=torch.int32), int64(1), int64(4), int64(2), int64(3), int64(5)
            ),
            r"prefix_indices has shape \[1\]; allowed: \[num_prefix=2\]",
        ),
        (
            lambda: gather_rows(int64(-1), torch.eye(2), int64([0, 0], [0, 0]), int64(0, 0), torch.eye(2)),
            r"indices\[0\] is -1; allowed: 0 to 1",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_argument_value_and_what_is_allowed(
    call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
