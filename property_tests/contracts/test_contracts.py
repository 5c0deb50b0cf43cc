"""Every operation's generator makes valid cases, reaches the corners, and makes them again from a tape."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.choices.chooser import replayed, seeded
from specsim.contracts.contract import Case, Op, Role, ScalarArg, TensorArg, differing
from specsim.contracts.hypothesis_cases import cases, tapes
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL
from specsim.reference.masks import PACKED_NODES_MAX

SEEDED_CASES = 400
few = settings(max_examples=max(20, settings().max_examples // 3))

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
DECODE_STEP_OPS = list(OPS.values())[:7]
CACHE_LOC_OPS = [op for op in OPS.values() if op.family == "cache_locs"]


@cache
def seeded_cases(name: str) -> list[Case]:
    count = SEEDED_CASES // 8 if name in WITHOUT_A_KERNEL else SEEDED_CASES
    return [OPS[name].generate(seeded(0, name, index)) for index in range(count)]


def assert_fits_the_contract(op: Op, case: Case) -> None:
    for arg in op.args:
        if isinstance(arg, ScalarArg):
            assert arg.name in case.sizes
        elif arg.role is Role.OUT:
            assert arg.name not in case.tensors
            assert all(dim >= 0 for dim in arg.resolve_shape(case.sizes))
        else:
            tensor = case.tensors[arg.name]
            assert tuple(tensor.shape) == arg.resolve_shape(case.sizes)
            assert tensor.dtype == arg.dtype
            assert tensor.is_contiguous()
            assert tensor.device.type == "cpu"
    assert len(case.tensors) == sum(arg.role is not Role.OUT for arg in op.tensor_args)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and not bool(differing(a, b).any())


def same_case(a: Case, b: Case) -> bool:
    return a.sizes == b.sizes and all(same(tensor, b.tensors[name]) for name, tensor in a.tensors.items())


def test_the_registry_names_the_operations_of_a_decode_step_first() -> None:
    assert list(OPS)[:7] == [
        "assign_req_to_token_pool",
        "assign_draft_cache_locs_contiguous",
        "assign_extend_cache_locs",
        "build_tree",
        "build_tree_packed",
        "verify_tree_greedy",
        "fill_bonus_tokens",
    ]


@every_op
def test_a_contract_explains_every_argument(op: Op) -> None:
    names = [arg.name for arg in op.args]
    assert len(names) == len(set(names))
    assert all(arg.doc for arg in op.args)
    assert op.summary
    assert op.source
    for arg in op.args:
        if isinstance(arg, TensorArg) and arg.prefill is not None:
            assert arg.role is Role.OUT


@every_op
def test_sizes_that_follow_from_others_do_in_every_case(op: Op) -> None:
    for index in range(20):
        case = op.generate(seeded(2, op.name, index))
        assert {name: eval(value, {}, case.sizes) for name, value in op.sizes.items()}.items() <= case.sizes.items()


@every_op
@pytest.mark.slow(runs_one_in=4)
def test_every_case_fits_its_contract_and_passes_the_references_checks(op: Op) -> None:
    for case in seeded_cases(op.name):
        assert_fits_the_contract(op, case)
        before = case.clone()
        expected = op.expected(case)
        assert same_case(case, before)
        defined = op.defined(case, expected)
        assert set(expected) == set(defined) == {arg.name for arg in op.outputs}
        assert all(defined[name].shape == expected[name].shape for name in expected)


@every_op
def test_choosing_nothing_gives_the_simplest_case(op: Op) -> None:
    case = op.generate(replayed(()))
    assert_fits_the_contract(op, case)
    simplest = {"bs": 1, "topk": 1, "num_steps": 1, "num_draft_tokens": 2}
    assert {name: size for name, size in case.sizes.items() if name in simplest}.items() <= simplest.items()
    assert "bs" in case.sizes


@every_op
def test_a_tape_makes_its_case_again(op: Op) -> None:
    for index in range(50):
        chooser = seeded(1, op.name, index)
        case = op.generate(chooser)
        again = replayed(chooser.tape)
        assert same_case(op.generate(again), case)
        assert again.tape == chooser.tape


@every_op
@few
@given(data=st.data())
def test_any_list_of_numbers_is_a_tape_of_a_valid_case(op: Op, data: st.DataObject) -> None:
    tape = data.draw(st.lists(st.integers(0, 70), max_size=60))
    case = op.generate(replayed(tape))
    assert_fits_the_contract(op, case)
    op.expected(case)


@every_op
@few
@given(data=st.data())
def test_hypothesis_and_the_fast_lane_make_the_same_cases(op: Op, data: st.DataObject) -> None:
    assert_fits_the_contract(op, data.draw(cases(op)))
    tape = data.draw(tapes(op))
    chooser = replayed(tape)
    op.generate(chooser)
    assert chooser.tape == tape


@every_op
@pytest.mark.slow(runs_one_in=3)
def test_a_case_takes_at_most_400_choices(op: Op) -> None:
    for index in range(SEEDED_CASES // (16 if op.name in WITHOUT_A_KERNEL else 2)):
        chooser = seeded(0, op.name, index)
        op.generate(chooser)
        assert len(chooser.tape) <= 400


@pytest.mark.parametrize("op", DECODE_STEP_OPS, ids=lambda op: op.name)
def test_the_shapes_that_hide_and_show_stride_defects_are_all_reached(op: Op) -> None:
    sizes = [case.sizes for case in seeded_cases(op.name)]
    width = [size["num_steps"] + 1 for size in sizes]
    nodes = [size["num_draft_tokens"] for size in sizes]
    assert {size["bs"] for size in sizes} == set(range(1, 6))
    assert {size["topk"] for size in sizes} == set(range(1, 9))
    assert {size["num_steps"] for size in sizes} == set(range(1, 10 if op.name == "verify_tree_greedy" else 7))
    several = [size["bs"] >= 2 and size["topk"] >= 2 for size in sizes]
    assert sum(s and n < w for s, n, w in zip(several, nodes, width, strict=True)) >= 20
    assert sum(s and n == w for s, n, w in zip(several, nodes, width, strict=True)) >= 20
    assert sum(s and n == w + 1 for s, n, w in zip(several, nodes, width, strict=True)) >= 20
    assert sum(s and n > w + 1 for s, n, w in zip(several, nodes, width, strict=True)) >= 20
    assert max(nodes) == (PACKED_NODES_MAX if op.name == "build_tree_packed" else 64)
    assert min(nodes) == 2
    assert all(n == w for n, w, size in zip(nodes, width, sizes, strict=True) if size["topk"] == 1)


@pytest.mark.parametrize("op", CACHE_LOC_OPS, ids=lambda op: op.name)
def test_rows_are_permuted_and_never_the_padding_row(op: Op) -> None:
    rows = [case.tensors["req_pool_indices"].tolist() for case in seeded_cases(op.name)]
    assert all(0 not in row for row in rows)
    assert all(len(set(row)) == len(row) for row in rows)
    assert sum(row != sorted(row) for row in rows) >= 50
    assert (
        sum(len(row) < case.sizes["pool_rows"] - 1 for row, case in zip(rows, seeded_cases(op.name), strict=True)) >= 50
    )


@pytest.mark.parametrize("op", CACHE_LOC_OPS, ids=lambda op: op.name)
def test_no_two_slots_of_a_case_are_equal(op: Op) -> None:
    for case in seeded_cases(op.name):
        slots = torch.cat([case.tensors["req_to_token"].flatten(), *_new_slots(case)]).tolist()
        assert len(set(slots)) == len(slots)
        assert 0 not in slots


def _new_slots(case: Case) -> list[torch.Tensor]:
    return [case.tensors["out_cache_loc"].int()] if "out_cache_loc" in case.tensors else []


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("assign_req_to_token_pool", "start_offset"),
        ("assign_draft_cache_locs_contiguous", "seq_lens"),
        ("assign_extend_cache_locs", "start_offset"),
        ("build_tree", "verified_seq_len"),
    ],
)
def test_sequences_end_at_before_and_after_page_boundaries(name: str, lengths: str) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    short: set[int] = set()
    for case in seeded_cases(name):
        page_size = case.sizes["page_size"]
        values = case.tensors[lengths].tolist()
        short.update(values)
        seen.update((page_size, value % page_size) for value in values if value >= page_size - 1)
    assert {0, 1} <= short
    assert {page_size for page_size, _ in seen} == {1, 4, 16, 64}
    for page_size in (4, 16, 64):
        assert min(seen[page_size, 0], seen[page_size, 1], seen[page_size, page_size - 1]) >= 10


@pytest.mark.parametrize("name", ["assign_req_to_token_pool", "assign_extend_cache_locs"])
def test_segments_are_uniform_or_ragged_and_some_are_empty(name: str) -> None:
    uniform, ragged, empty = 0, 0, 0
    for case in seeded_cases(name):
        widths = (case.tensors["end_offset"] - case.tensors["start_offset"]).tolist()
        uniform += set(widths) == {case.sizes["num_draft_tokens"]}
        ragged += len(set(widths)) > 1
        empty += 0 in widths
        assert sum(widths) >= 1
    assert uniform >= 100
    assert ragged >= 100
    assert empty >= 30


def test_trees_are_chains_bushes_and_of_full_depth_in_both_mask_modes() -> None:
    op = OPS["build_tree"]
    depths: Counter[str] = Counter()
    for case in seeded_cases("build_tree"):
        tree = op.expected(case)
        bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
        depth = tree["positions"].view(bs, ndt) - case.tensors["verified_seq_len"][:, None]
        deepest = depth.amax(dim=1)
        possible = min(case.sizes["num_steps"], ndt - 1)
        depths["full depth"] += int((deepest == possible).sum())
        depths["flat"] += int(((deepest == 1) & torch.tensor(possible > 1)).sum())
        depths["bushy"] += int((depth == 1).sum(dim=1).max() >= 3)
        depths["tree of its own"] += bs >= 2 and len({tuple(row) for row in depth.tolist()}) >= 2
        depths[f"mode {case.sizes['tree_mask_mode']}"] += 1
    assert min(depths.values()) >= 15, depths
    assert len(depths) == 6


def test_every_accept_length_happens_often() -> None:
    op = OPS["verify_tree_greedy"]
    by_steps: dict[int, Counter[int]] = {steps: Counter() for steps in range(1, 10)}
    in_trees: Counter[int] = Counter()
    for case in seeded_cases("verify_tree_greedy"):
        lengths = op.expected(case)["accept_token_num"].tolist()
        by_steps[case.sizes["num_steps"]].update(lengths)
        if case.sizes["topk"] >= 2:
            in_trees.update(lengths)
    for steps, counts in by_steps.items():
        often = 5 if steps <= 6 else 2
        assert min(counts[length] for length in range(steps + 1)) >= often, (steps, counts)
    assert min(in_trees[length] for length in range(7)) >= 10, in_trees


def test_walks_pass_over_siblings_and_meet_equal_ones() -> None:
    op = OPS["verify_tree_greedy"]
    later_sibling, equal_siblings, accepted_equal = 0, 0, 0
    for case in seeded_cases("verify_tree_greedy"):
        ndt = case.sizes["num_draft_tokens"]
        path = op.expected(case)["accept_index"] % ndt
        accepted = op.expected(case)["accept_token_num"]
        first, sibling = case.tensors["retrieve_next_token"], case.tensors["retrieve_next_sibling"]
        tokens = case.tensors["candidates"]
        for b in range(case.sizes["bs"]):
            nodes = path[b, : int(accepted[b]) + 1].tolist()
            later_sibling += any(int(first[b, parent]) != child for parent, child in pairwise(nodes))
            for node in range(ndt):
                other = int(sibling[b, node])
                equal = other >= 0 and bool(tokens[b, node] == tokens[b, other])
                equal_siblings += equal
                accepted_equal += equal and node in nodes
    assert later_sibling >= 50
    assert equal_siblings >= 50
    assert accepted_equal >= 10


def test_accepted_paths_for_the_bonus_are_shortest_longest_and_between() -> None:
    kinds: Counter[str] = Counter()
    for case in seeded_cases("fill_bonus_tokens"):
        longest = min(case.sizes["accept_width"], case.sizes["num_draft_tokens"])
        for accept_len in case.tensors["accept_lens"].tolist():
            kinds["shortest"] += accept_len == 1
            kinds["longest"] += accept_len == longest
            kinds["whole width"] += accept_len == case.sizes["accept_width"]
            kinds["between"] += 1 < accept_len < longest
    assert min(kinds.values()) >= 100, kinds


def test_predicts_is_defined_on_the_accepted_path_alone() -> None:
    op = OPS["verify_tree_greedy"]
    for case in seeded_cases("verify_tree_greedy")[:100]:
        expected = op.expected(case)
        defined = op.defined(case, expected)
        assert int(defined["predicts"].sum()) == int((expected["accept_token_num"] + 1).sum())
        assert bool(defined["accept_index"].all())
        assert bool(defined["accept_token_num"].all())
