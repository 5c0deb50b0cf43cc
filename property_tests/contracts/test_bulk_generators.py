"""Bulk generators: valid cases by the thousand, each made from its number alone, the same on every device."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from property_tests.naive import NAIVE
from specsim.choices.chooser import replayed, seeded
from specsim.contracts import counter_rng
from specsim.contracts.batches import SPARE_COLUMNS_MAX
from specsim.contracts.contract import Case, Op, Role, ScalarArg, TensorArg, differing
from specsim.contracts.registry import OPS

SHAPES = 8
REQUESTS = 200

every_op = pytest.mark.parametrize("name", OPS)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

# What a request is given by its place in the batch, and what of it does not depend on that: numbers of nodes count
# from the request's first, rows and slots are any, but for padding and the offset in a page.
BATCH_RELATIVE: dict[str, Callable[[Tensor, int, Case], Tensor]] = {
    "retrieve_index": lambda row, b, case: row - b * case.sizes["num_draft_tokens"],
    "accept_index": lambda row, b, case: torch.where(row >= 0, row - b * case.sizes["num_draft_tokens"], row),
    "bias_rows": lambda row, b, _case: torch.where(row >= 0, row - b, row),
    "bitmask_rows": lambda row, b, case: torch.where(row >= 0, row - b * case.sizes["num_draft_tokens"], row),
    "req_pool_indices": lambda row, _b, _case: row > 0,
    "indices": lambda row, _b, _case: row > 0,
    "select_index": lambda row, b, case: row - case.tensors["extend_start_loc"][b],
    # Not all requests of a batch are empty: one that is empty in company has a token alone.
    "end_offset": lambda row, b, case: (row - case.tensors["start_offset"][b]).clamp(min=1),
    "seq_lens": lambda row, b, case: (
        row.clamp(min=case.tensors["prefix_lens"][b] + 1) if "prefix_lens" in case.tensors else row
    ),
    "last_loc": lambda row, _b, case: torch.where(row >= 0, row % case.sizes["page_size"], row),
}
# Tensors of no first dimension "bs" that have as many elements for each request.
PER_REQUEST = ("bs", "num_nodes", "num_rows")
SLOTS = (
    "out_cache_loc",
    "extend_start_loc",
    "old_extend_start_loc",
    "src_row_ends",
    "idx_mapping",
    "cache_loc",
    "verify_cache_loc",
    "out_loc",
    "last_token_indices",
)  # all of it goes by the place in the batch


def numbers(index: int, count: int = REQUESTS) -> Tensor:
    """Case numbers that are small, large and far apart."""
    return torch.arange(count) * (2 * index + 1) + index * 2**20 + (2**40 if index % 2 else 0)


@cache
def shapes(name: str) -> tuple[dict[str, int], ...]:
    drawn = [OPS[name].cases.draw_shape(seeded(0, name, index)) for index in range(SHAPES - 1)]
    return (OPS[name].cases.draw_shape(replayed(())), *drawn)


@cache
def bulk_cases(name: str) -> tuple[Case, ...]:
    return tuple(OPS[name].cases.make(numbers(index), shape) for index, shape in enumerate(shapes(name)))


def inputs(op: Op) -> list[TensorArg]:
    return [arg for arg in op.tensor_args if arg.role is not Role.OUT]


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and not bool(differing(a, b).any())


def same_case(a: Case, b: Case) -> bool:
    return a.sizes == b.sizes and all(same(a.tensors[name].cpu(), b.tensors[name].cpu()) for name in a.tensors)


def agree(a: Tensor, b: Tensor, tolerance: float | None) -> bool:
    return torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True) if tolerance else same(a, b)


@every_op
def test_a_bulk_case_fits_its_contract(name: str) -> None:
    op = OPS[name]
    for case in bulk_cases(name):
        assert case.sizes["bs"] == REQUESTS
        for arg in op.args:
            if isinstance(arg, ScalarArg):
                assert arg.name in case.sizes
            elif arg.role is Role.OUT:
                assert all(dim >= 0 for dim in arg.resolve_shape(case.sizes))
            else:
                assert arg.check(case.tensors[arg.name], case.sizes).is_contiguous()
        assert set(case.tensors) == {arg.name for arg in inputs(op)}


@every_op
@pytest.mark.slow(runs_one_in=4)
def test_the_reference_accepts_bulk_cases_and_equals_the_naive_implementation(name: str) -> None:
    op = OPS[name]
    for case in bulk_cases(name):
        expected = op.expected(case)
        naive = op.call(NAIVE[op.name], case.sizes, {**case.clone().tensors, **op.allocate_outputs(case)})
        defined = op.defined(case, expected)
        for output, tensor in expected.items():
            where = defined[output].expand_as(tensor)
            assert agree(tensor[where], naive[output][where], op.tolerance.get(output)), (output, case.sizes)


@every_op
def test_a_request_out_of_a_batch_can_be_made_alone(name: str) -> None:
    op = OPS[name]
    for index, (shape, case) in enumerate(zip(shapes(name), bulk_cases(name), strict=True)):
        for b in (0, 1, 17, REQUESTS - 1):
            alone = OPS[name].cases.make(numbers(index)[b : b + 1], shape)
            for arg in inputs(op):
                if arg.shape[0] in PER_REQUEST and arg.name not in SLOTS and arg.role is Role.IN:
                    row = case.tensors[arg.name].unflatten(0, (REQUESTS, -1))[b]
                    other = alone.tensors[arg.name]
                    if arg.name in BATCH_RELATIVE:
                        row = BATCH_RELATIVE[arg.name](row, b, case)
                        other = BATCH_RELATIVE[arg.name](other, 0, alone)
                    assert same(row, other), (arg.name, b, shape)


@every_op
def test_a_request_alone_is_a_valid_case(name: str) -> None:
    op = OPS[name]
    for index, shape in enumerate(shapes(name)):
        case = OPS[name].cases.make(numbers(index, 1), shape)
        naive = op.call(NAIVE[op.name], case.sizes, {**case.clone().tensors, **op.allocate_outputs(case)})
        expected = op.expected(case)
        defined = op.defined(case, expected)
        for output, tensor in expected.items():
            where = defined[output].expand_as(tensor)
            assert agree(tensor[where], naive[output][where], op.tolerance.get(output)), (output, case.sizes)


@every_op
def test_numbers_and_sizes_make_a_case_again(name: str) -> None:
    for index, (shape, case) in enumerate(zip(shapes(name), bulk_cases(name), strict=True)):
        assert same_case(OPS[name].cases.make(numbers(index), shape), case)


@needs_cuda
@every_op
def test_a_gpu_makes_the_same_cases(name: str) -> None:
    for index, (shape, case) in enumerate(zip(shapes(name), bulk_cases(name), strict=True)):
        on_gpu = OPS[name].cases.make(numbers(index).cuda(), shape)
        assert all(tensor.is_cuda for tensor in on_gpu.tensors.values())
        assert same_case(on_gpu, case)


@every_op
def test_other_numbers_make_another_case(name: str) -> None:
    shape = shapes(name)[-1]
    assert not same_case(OPS[name].cases.make(numbers(0), shape), OPS[name].cases.make(numbers(0) + REQUESTS, shape))


VERIFY_SIZES = {"num_draft_tokens": 8, "vocab_size": 8, "threshold_single_64ths": 64, "threshold_acc_64ths": 64}


def verify_shape(name: str) -> dict[str, int]:
    tree = name.startswith("verify_tree")
    return {**VERIFY_SIZES, "topk": 3 if tree else 1, "num_steps": 4 if tree else 7}


VERIFY_OPS = [
    "verify_tree_greedy",
    "verify_tree_target_only",
    "verify_tree_rejection",
    "verify_chain_rejection",
    "verify_chain_block",
]
SAMPLING_OPS = VERIFY_OPS[1:]


@cache
def verification(name: str, count: int = 4_000) -> Case:
    return OPS[name].cases.make(torch.arange(count), verify_shape(name))


@pytest.mark.parametrize("name", VERIFY_OPS)
def test_hardly_two_numbers_make_the_same_verification(name: str) -> None:
    count = 20_000
    rows = [
        tensor.view(count, -1).double()
        for arg, tensor in verification(name, count).tensors.items()
        if tensor.shape[0] == count and arg not in BATCH_RELATIVE
    ]
    columns = torch.cat(rows, dim=1)  # [count, columns]
    weight_of_column = counter_rng.uniform(torch.arange(columns.shape[1]), "weight of a column").double()
    assert (columns @ weight_of_column).unique().shape[0] > 0.999 * count


@pytest.mark.parametrize("name", VERIFY_OPS)
def test_none_all_and_some_drafts_are_accepted(name: str) -> None:
    accepted = OPS[name].expected(verification(name))["accept_token_num"]
    shares = accepted.bincount(minlength=verify_shape(name)["num_steps"] + 1) / accepted.shape[0]
    assert shares[0] >= 0.1
    assert bool((shares > 0.005).all()), shares
    assert shares[2:].sum() >= 0.3


@pytest.mark.parametrize(("topk", "num_steps", "num_draft_tokens"), [(4, 2, 8), (2, 5, 16), (8, 6, 64)])
def test_deep_walks_are_frequent_in_trees_of_any_size(topk: int, num_steps: int, num_draft_tokens: int) -> None:
    shape = {"topk": topk, "num_steps": num_steps, "num_draft_tokens": num_draft_tokens}
    case = OPS["verify_tree_greedy"].cases.make(torch.arange(1_000), shape)
    accepted = OPS["verify_tree_greedy"].expected(case)["accept_token_num"]
    assert {0, num_steps} <= set(accepted.tolist())
    assert int((accepted >= 2).sum()) >= 300


@pytest.mark.parametrize("name", SAMPLING_OPS)
def test_distributions_are_dyadic_and_drafts_can_have_been_drawn(name: str) -> None:
    case = verification(name)
    dists = [tensor * 64 for arg, tensor in case.tensors.items() if arg.endswith("_probs")]
    assert all(torch.equal(dist, dist.round()) for dist in dists)
    assert all(bool((dist == 0).any()) and bool((dist == 64).any()) for dist in dists)
    draft, tokens = case.tensors.get("draft_probs"), case.tensors["candidates"]
    if draft is not None and name.startswith("verify_chain"):
        assert bool((draft.gather(2, tokens[:, 1:, None]) > 0).all())
    elif draft is not None:
        first, sibling = case.tensors["retrieve_next_token"], case.tensors["retrieve_next_sibling"]
        for node in range(tokens.shape[1]):
            seen = torch.zeros_like(draft[:, 0], dtype=torch.bool)  # [bs, V]
            child = first[:, node]
            while bool((child >= 0).any()):
                token = tokens.gather(1, child.clamp(min=0)[:, None])
                fresh = (draft[:, node].gather(1, token) > 0) & ~seen.gather(1, token)
                assert bool((fresh[:, 0] | (child < 0)).all())
                seen |= torch.zeros_like(seen).scatter(1, token, (child >= 0)[:, None])
                child = torch.where(child >= 0, sibling.gather(1, child.clamp(min=0)[:, None])[:, 0], -1)


def test_a_quarter_of_the_target_only_uniform_draws_lies_at_and_beside_cumulative_probabilities() -> None:
    coins = verification("verify_tree_target_only").tensors["uniform_samples"]
    at = coins * 64 == (coins * 64).round()
    nearest = (coins * 64).round() / 64
    one_up, one_down = torch.nextafter(nearest, nearest + 1), torch.nextafter(nearest, nearest - 1)
    for beside in (at, coins == one_up, coins == one_down):
        assert 0.1 < beside.float().mean() < 0.6


def test_uniform_draws_of_the_token_rule_lie_at_and_beside_the_ratio() -> None:
    case = verification("verify_chain_rejection").tensors
    drafts = case["candidates"][:, 1:, None]
    q = case["draft_probs"].gather(2, drafts)[:, :, 0]
    p = case["target_probs"][:, :-1].gather(2, drafts)[:, :, 0]
    ratio, coins = p / q, case["uniform_samples"]
    beside = [ratio, torch.nextafter(ratio, ratio + 1), torch.nextafter(ratio, ratio - 1)]
    for threshold in beside:
        assert int(((coins == threshold) & (ratio > 0) & (ratio < 1)).sum()) >= 200


@pytest.mark.parametrize("name", SAMPLING_OPS)
def test_uniform_draws_are_below_1_and_final_uniform_draws_lie_beside_edges_too(name: str) -> None:
    case = verification(name).tensors
    for coins in (case["uniform_samples"], case["uniform_final"]):
        assert bool(((coins >= 0) & (coins < 1)).all())
    assert int((case["uniform_final"] == 1 - 2.0**-24).sum()) >= 20
    assert int((case["uniform_final"] == 0).sum()) >= 20


def test_uniform_draws_off_the_path_accept_and_reject() -> None:
    """So that a uniform draw, a distribution or a link of a wrong node shows."""
    case = verification("verify_tree_target_only")
    ndt, first = case.sizes["num_draft_tokens"], case.tensors["retrieve_next_token"]
    path = OPS["verify_tree_target_only"].expected(case)["accept_index"].long()
    on_path = torch.zeros(first.numel() + 1, dtype=torch.bool)  # the last element is that of -1
    on_path[path] = True
    token = case.tensors["candidates"].gather(1, first.clamp(min=0))  # [bs, ndt]
    p = case.tensors["target_probs"].gather(2, token[:, :, None])[:, :, 0]
    unread = (first >= 0) & ~on_path[:-1].view(-1, ndt) & (p > 0) & (p < 1)
    accepts = (case.tensors["uniform_samples"] < p)[unread].float()
    assert accepts.shape[0] >= 500
    assert 0.25 < accepts.mean() < 0.75


PAGED = {"topk": 4, "num_steps": 3, "num_draft_tokens": 8, "page_size": 16}


def test_lengths_lie_beside_page_boundaries_and_rows_are_permuted() -> None:
    case = OPS["get_last_loc"].cases.make(torch.arange(500), PAGED).tensors
    lens, rows = case["prefix_lens"], case["req_pool_indices"]
    assert set(lens.tolist()) == {0, 1, 15, 16, 17, 31, 32, 33}
    live = rows[rows > 0]
    assert live.unique().shape == live.shape
    assert not torch.equal(live, live.sort().values)
    assert 0 <= case["req_to_token"].shape[1] - int(lens.max()) <= SPARE_COLUMNS_MAX


@pytest.mark.parametrize("name", ["get_last_loc", "generate_draft_decode_kv_indices"])
def test_some_requests_are_padding_and_hold_row_0(name: str) -> None:
    rows = OPS[name].cases.make(torch.arange(800), PAGED).tensors["req_pool_indices"]
    assert 60 <= int((rows == 0).sum()) <= 140


@pytest.mark.parametrize("name", ["fill_accept_out_cache_loc", "compact_accepted_path"])
def test_padding_requests_accept_nothing_and_others_one_all_or_some(name: str) -> None:
    case = OPS[name].cases.make(torch.arange(800), {**PAGED, "hidden_size": 2})
    accepted = (case.tensors["accept_index"] >= 0).sum(dim=1).bincount(minlength=5)
    assert accepted.shape[0] == 5
    assert int(accepted.min()) >= 50


def test_a_batch_has_just_enough_free_pages_or_some_to_spare() -> None:
    spare = set()
    for index in range(40):
        case = OPS["alloc_extend"].cases.make(torch.arange(9) + 9 * index, PAGED)
        before, after = case.tensors["prefix_lens"], case.tensors["seq_lens"]
        needed = int(((after + 15) // 16 - (before + 15) // 16).sum())
        spare.add(case.sizes["num_free_pages"] - needed)
        assert bool((after >= before).all())
    assert {0, 1, 2} == spare


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("alloc_extend", "last_loc"),
        ("alloc_extend", "free_pages"),
        ("fill_accept_out_cache_loc", "out_cache_loc"),
        ("compact_accepted_path", "out_cache_loc"),
        ("move_kv", "target"),
    ],
)
def test_slots_and_pages_are_in_no_order(name: str, slots: str) -> None:
    values = OPS[name].cases.make(numbers(0), {**PAGED, "hidden_size": 2, "row_width": 2}).tensors[slots]
    values = values[values > 0]
    rising = (values[1:] > values[:-1]).float().mean()
    assert 0.3 < rising < 0.7
    assert int(values.unique().shape[0]) == values.shape[0]


@pytest.mark.parametrize("name", ["select_top_k", "organize_draft_results"])
def test_scores_are_never_subnormal_for_some_hardware_makes_those_0(name: str) -> None:
    smallest = 2.0**-126
    for case in bulk_cases(name):
        tensors = case.tensors
        if name == "select_top_k":
            scores = tensors["scores"].double().view(-1, 1) * tensors["topk_p"].double()
        else:
            scores = tensors["scores"].double()
        assert not bool(((scores.abs() < smallest) & (scores.abs() >= 2.0**-150)).any())


def test_scores_underflow_tie_and_are_infinite() -> None:
    case = OPS["select_top_k"].cases.make(torch.arange(2_000), {**PAGED, "step": 2}).tensors
    products = case["scores"].view(-1, 1) * case["topk_p"]
    underflows = (products == 0) & (case["topk_p"] > 0) & (case["scores"].view(-1, 1) > 0)
    ties = products.sort(dim=1).values.diff(dim=1) == 0
    for happens in (underflows, ties, products == torch.inf, products == -torch.inf, products.isnan()):
        assert int(happens.any(dim=1).sum()) >= 100


def test_moves_overlap_towards_the_front_towards_the_back_and_in_cycles() -> None:
    kinds = {"front": 0, "back": 0, "cycle": 0, "padding": 0}
    for number in range(300):
        case = OPS["move_kv"].cases.make(torch.tensor([number]), {**PAGED, "row_width": 1})
        targets, sources = case.tensors["target"].tolist(), case.tensors["source"].tolist()
        kinds["padding"] += 0 in targets
        live = [(to, source) for to, source in zip(targets, sources, strict=True) if to]
        targets, sources = [to for to, _ in live], [source for _, source in live]
        assert len(set(targets)) == len(targets)
        if len(live) > 1 and set(targets) == set(sources):
            kinds["cycle"] += targets != sources
        elif len(live) > 1:
            kinds["front"] += sources[:-1] == targets[1:]
            kinds["back"] += targets[:-1] == sources[1:]
    assert min(kinds.values()) >= 20, kinds


@pytest.mark.parametrize("name", ["alloc_extend", "alloc_decode"])
def test_pages_are_nobody_elses(name: str) -> None:
    for case in bulk_cases(name):
        last_loc, page_size = case.tensors["last_loc"], case.sizes["page_size"]
        pages = torch.cat([last_loc[last_loc >= 0] // page_size, case.tensors["free_pages"]])
        assert pages.unique().shape == pages.shape
        assert int(pages.min()) >= 1


def test_a_number_means_the_same_case_for_ever() -> None:
    """Findings are reported by number: when one of these changes, no reported case can be made again."""
    ids = torch.tensor([0, 1, 2, 2**40])
    assert counter_rng.words(ids, "a").tolist() == [
        5176680637034966593,
        9063778959094765021,
        4720488972652639963,
        397825547579492276,
    ]
    assert counter_rng.words(ids[:2], "token of the root", 3).tolist() == [
        [2762170159003288351, 5189405085762265628, 8706433643485527386],
        [4012511894963874766, 1481854374222129566, 4143666817688695086],
    ]
    assert counter_rng.below(ids, "place", torch.tensor([1, 2, 1000, 2**31])).tolist() == [0, 1, 42, 108566823]
    assert (counter_rng.uniform(ids, "coin") * 2**24).tolist() == [9151501, 10797080, 6582881, 251732]


def _mixed(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


@given(number=st.integers(0, 2**62), what=st.text(max_size=8), columns=st.integers(1, 3))
def test_words_are_those_of_arithmetic_without_overflow(number: int, what: str, columns: int) -> None:
    golden = 0x9E3779B97F4A7C15
    state = _mixed((number * golden + zlib.crc32(what.encode())) % 2**64)
    expected = [_mixed((state + golden * column) % 2**64) % 2**63 for column in range(1, columns + 1)]
    ids = torch.tensor([number])
    assert counter_rng.words(ids, what, columns).tolist() == [expected]
    assert counter_rng.words(ids, what).tolist() == expected[:1]


@given(bound=st.integers(1, 2**31), first=st.integers(0, 2**40))
def test_draws_stay_within_their_bounds(bound: int, first: int) -> None:
    ids = first + torch.arange(100)
    draws = counter_rng.below(ids, "bound", bound, 3)
    assert bool(((draws >= 0) & (draws < bound)).all())
    uniform = counter_rng.uniform(ids, "bound", 3)
    assert uniform.dtype == torch.float32
    assert bool(((uniform >= 0) & (uniform < 1)).all())


def test_draws_are_even_and_do_not_follow_one_another() -> None:
    draws = counter_rng.below(torch.arange(4_000), "evenness", 10, 2)  # [4000, 2]
    pairs = (draws[:, 0] * 10 + draws[:, 1]).bincount(minlength=100)
    assert 15 <= int(pairs.min()) <= 40 <= int(pairs.max()) <= 75
    assert abs(float(counter_rng.uniform(torch.arange(4_000), "evenness").mean()) - 0.5) < 0.02
