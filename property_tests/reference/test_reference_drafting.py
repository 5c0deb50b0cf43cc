"""Drafting: a total order that never makes an orphan, and trees that are the ones `build_tree` builds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.naive import drafting as naive
from property_tests.naive.masks import pack_tree_mask_naive, unpack_tree_mask_naive
from specsim.choices.chooser import replayed, seeded
from specsim.contracts import drafting as family
from specsim.contracts.contract import Role, TensorArg
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS as EVERY_OP
from specsim.reference import QLEN_ONLY, build_tree, masks, unchecked, verify_tree_greedy
from specsim.reference import drafting as ref

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Op, Tensors

NAN, INF = float("nan"), float("inf")
OPS = {op.name: op for op in family.OPS}
SEEDED_CASES = 200
every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))


class Drafting(NamedTuple):
    """The probabilities and tokens that a draft model gives, step by step: [bs, topk], then [bs * topk, topk]."""

    probabilities: list[torch.Tensor]
    tokens: list[torch.Tensor]
    num_draft_tokens: int

    @property
    def topk(self) -> int:
        return self.probabilities[0].shape[1]

    @property
    def bs(self) -> int:
        return self.probabilities[0].shape[0]

    def relabelled(self, label: Callable[..., Any]) -> Drafting:
        return self._replace(tokens=[label(tokens) for tokens in self.tokens])

    def permuted(self, order: list[int]) -> Drafting:
        def rows(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view(self.bs, -1, self.topk)[order].reshape(-1, self.topk)

        return self._replace(
            probabilities=[rows(p) for p in self.probabilities], tokens=[rows(tokens) for tokens in self.tokens]
        )


PROBABILITIES = {
    "all one": (1.0,),
    "all equal": (0.5,),
    "all zero": (0.0,),
    "all NaN": (NAN,),
    "one or zero": (1.0, 0.0, -0.0),
    "ties": (1.0, 0.5, 0.25),
    "underflow": (1.0, 1e-30, 2.0**-100),
    "generic": tuple(k / 97 for k in range(1, 97)),
    "anything": (1.0, 0.5, 1 / 3, 0.0, -0.0, 1e-38, 5e-324, NAN),
}


@st.composite
def draftings(draw: Callable[..., Any], dtype: torch.dtype | None = None) -> Drafting:
    bs, topk, num_steps = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dtype = dtype or draw(st.sampled_from((torch.float32, torch.float64)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    probabilities, tokens = [], []
    for step in range(num_steps):
        values = PROBABILITIES[draw(st.sampled_from(sorted(PROBABILITIES)))]
        if step == 0 and draw(st.booleans()):
            values = (*values, INF, -INF)
        shape = (bs if step == 0 else bs * topk, topk)
        index = torch.randint(len(values), shape, generator=generator)
        probabilities.append(torch.tensor(values, dtype=torch.float64).to(dtype)[index])
        tokens.append(torch.randint(5, shape, generator=generator))
    total = topk + (num_steps - 1) * topk**2
    return Drafting(probabilities, tokens, draw(st.integers(2, total + 1)))


def draft(given: Drafting, is_naive: bool = False) -> tuple[list[ref.Expansion], ref.DraftResults]:
    """Every step of a drafting and what is kept."""
    module, suffix = (naive, "_naive") if is_naive else (ref, "")
    first, following = (getattr(module, f"select_top_k_tokens_{which}{suffix}") for which in ("first", "next"))
    steps = [first(given.probabilities[0], given.tokens[0])]
    for step in range(1, len(given.probabilities)):
        steps.append(following(step, given.probabilities[step], given.tokens[step], steps[-1].next_scores))
    organize = getattr(module, f"organize_draft_results{suffix}")
    lists = ([getattr(s, name) for s in steps] for name in ("candidate_scores", "candidate_tokens", "parents"))
    return steps, organize(*lists, given.num_draft_tokens)


def assert_same(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0)


def assert_closed(results: ref.DraftResults, topk: int) -> None:
    for parent_list, selected in zip(results.parent_list.tolist(), results.selected_index.tolist(), strict=True):
        for flat_id in selected:
            assert flat_id < topk or parent_list[flat_id // topk] in selected


def with_dtype(case: Case, dtype: torch.dtype) -> Tensors:
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in case.clone().tensors.items()}


@given(given=draftings())
def test_a_drafting_equals_the_naive_implementation_with_nan_and_infinities(given: Drafting) -> None:
    steps, results = draft(given)
    steps_naive, results_naive = draft(given, is_naive=True)
    for step, naive_step in zip(steps, steps_naive, strict=True):
        assert_same(naive_step, step)
    assert_same(results_naive, results)


@given(given=draftings())
def test_the_parent_of_whoever_is_kept_is_kept(given: Drafting) -> None:
    _, results = draft(given)
    assert_closed(results, given.topk)


@pytest.mark.parametrize("values", [(1.0, 0.5, 0.0), (1.0, 0.5, NAN), (1.0, 1e-30, 0.0), (1.0, 1.0, -0.0)])
@pytest.mark.parametrize("num_draft_tokens", range(2, 8))
def test_no_pattern_of_ties_makes_an_orphan(values: tuple[float, ...], num_draft_tokens: int) -> None:
    """Every pattern of two steps with topk 2, one a request."""
    patterns = torch.tensor(list(itertools.product(values, repeat=6)))  # [729, 6]
    bs = patterns.shape[0]
    first, second = patterns[:, :2], patterns[:, 2:].reshape(-1, 2)
    tokens = [torch.zeros_like(p, dtype=torch.int64) for p in (first, second)]
    _, results = draft(Drafting([first, second], tokens, num_draft_tokens))
    tree = build_tree(
        results.parent_list, results.selected_index, torch.zeros(bs, dtype=torch.int64), 2, 2, num_draft_tokens, 1
    )
    assert int(tree.positions.max()) <= 2


@given(given=draftings())
def test_strides_change_nothing(given: Drafting) -> None:
    def strided(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.t().contiguous().t()

    apart = given._replace(
        probabilities=[strided(p) for p in given.probabilities], tokens=[strided(t) for t in given.tokens]
    )
    for is_naive in (False, True):
        steps, results = draft(given, is_naive)
        steps_apart, results_apart = draft(apart, is_naive)
        assert_same(results_apart, results)
        for step, step_apart in zip(steps, steps_apart, strict=True):
            assert_same(step_apart, step)


@pytest.mark.parametrize("p", [1.0, 0.5, 0.0, NAN, 1e-30])
@pytest.mark.parametrize(("topk", "num_steps"), [(8, 6), (3, 4), (1, 6)])
def test_equal_probabilities_keep_the_lowest_flat_ids(p: float, topk: int, num_steps: int) -> None:
    """Where all scores tie (p = 1, 0, NaN) the kept candidates are the first ones; elsewhere steps come in turn."""
    probabilities = [torch.full((topk if step else 1, topk), p) for step in range(num_steps)]
    tokens = [torch.zeros_like(step, dtype=torch.int64) for step in probabilities]
    total = topk + (num_steps - 1) * topk**2
    for num_draft_tokens in {2, topk + 1, total // 2 + 1, total, total + 1} - {1}:
        _, results = draft(Drafting(probabilities, tokens, num_draft_tokens))
        assert results.selected_index.tolist() == [list(range(num_draft_tokens - 1))]


@given(given=draftings())
def test_drafting_building_and_verifying_never_raise(given: Drafting) -> None:
    _, results = draft(given)
    topk, num_steps, ndt = given.topk, len(given.probabilities), given.num_draft_tokens
    seq_len = torch.full((given.bs,), 7)
    tree = build_tree(results.parent_list, results.selected_index, seq_len, topk, num_steps, ndt, QLEN_ONLY)
    candidates = torch.cat([torch.zeros(given.bs, 1, dtype=torch.int64), results.draft_tokens], dim=1)
    for target in range(5):
        predicted = torch.full_like(candidates, target)
        verified = verify_tree_greedy(candidates, *tree[2:], predicted, num_steps)
        accepted = verified.accept_index[verified.accept_index >= 0]
        drafts = accepted[accepted % ndt > 0]
        assert bool((candidates.flatten()[drafts] == target).all())
        assert int(verified.accept_token_num.max()) <= num_steps


@given(given=draftings())
def test_what_is_kept_is_the_best_and_comes_with_its_tokens(given: Drafting) -> None:
    steps, results = draft(given)
    scores = torch.cat([step.candidate_scores for step in steps], dim=1)
    tokens = torch.cat([step.candidate_tokens for step in steps], dim=1)
    assert bool((results.selected_index[:, 1:] > results.selected_index[:, :-1]).all())
    assert torch.equal(tokens.gather(1, results.selected_index), results.draft_tokens)
    kept = scores.gather(1, results.selected_index).sort(dim=1, descending=True).values
    assert torch.equal(kept, scores.topk(given.num_draft_tokens - 1, dim=1).values)


@given(given=draftings())
def test_a_step_expands_the_best_and_says_where_they_are_from(given: Drafting) -> None:
    steps, _ = draft(given)
    topk = given.topk
    for step in range(1, len(steps)):
        before, after = steps[step - 1], steps[step]
        first_id = topk + (step - 1) * topk**2
        best = after.parents - first_id
        assert torch.equal(after.next_scores, after.candidate_scores.topk(topk, dim=1).values)
        assert torch.equal(after.candidate_scores.gather(1, best), after.next_scores)
        assert torch.equal(after.candidate_tokens.gather(1, best).flatten(), after.input_ids)
        assert torch.equal(given.tokens[step][after.hidden_index, best.flatten() % topk], after.input_ids)
        row = best // topk + torch.arange(given.bs)[:, None] * topk
        assert torch.equal(row.flatten(), after.hidden_index)
        assert not bool(after.candidate_scores.isnan().any())
        assert bool((after.next_scores <= before.next_scores.gather(1, best // topk)).all())
        equal = after.next_scores[:, 1:] == after.next_scores[:, :-1]
        assert bool((best[:, 1:] > best[:, :-1])[equal].all())


@given(given=draftings(), data=st.data())
def test_permuting_the_requests_permutes_their_drafts(given: Drafting, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(given.bs)))
    steps, results = draft(given)
    permuted_steps, permuted = draft(given.permuted(order))
    assert_same(permuted, tuple(tensor[order] for tensor in results))
    for step, after in zip(steps, permuted_steps, strict=True):
        assert torch.equal(after.next_scores, step.next_scores[order])
        assert torch.equal(after.input_ids, step.input_ids.view(given.bs, -1)[order].flatten())
        assert torch.equal(after.parents, step.parents[order])


@given(given=draftings())
def test_relabelling_the_tokens_relabels_the_drafts_and_nothing_else(given: Drafting) -> None:
    def label(tokens: torch.Tensor) -> torch.Tensor:
        return (tokens * 3 + 1) % 5 + 100

    steps, results = draft(given)
    other_steps, other = draft(given.relabelled(label))
    assert_same(other, results._replace(draft_tokens=label(results.draft_tokens)))
    for step, after in zip(steps, other_steps, strict=True):
        labels = {"input_ids": label(step.input_ids), "candidate_tokens": label(step.candidate_tokens)}
        assert_same(after, step._replace(**labels))


@given(given=draftings())
def test_inputs_are_left_alone_and_no_two_tensors_share_memory(given: Drafting) -> None:
    probabilities, tokens = ([t.clone() for t in tensors] for tensors in (given.probabilities, given.tokens))
    steps, results = draft(given)
    assert_same(tuple(given.tokens), tuple(tokens))
    for p, before in zip(given.probabilities, probabilities, strict=True):
        torch.testing.assert_close(p, before, rtol=0, atol=0, equal_nan=True)
    everything = [*given.probabilities, *given.tokens, *results, *itertools.chain.from_iterable(steps)]
    addresses = [tensor.untyped_storage().data_ptr() for tensor in everything if tensor.numel()]
    assert len(set(addresses)) == len(addresses)


def test_a_small_drafting_is_what_one_computes_by_hand() -> None:
    first = ref.select_top_k_tokens_first(torch.tensor([[0.5, 0.25]]), torch.tensor([[10, 11]]))
    assert first.parents.tolist() == [[-1, 0, 1]]
    assert first.hidden_index.tolist() == [0, 0]
    p = torch.tensor([[0.5, 0.25], [1.0, 0.5]])
    second = ref.select_top_k_tokens_next(1, p, torch.tensor([[20, 21], [22, 23]]), first.next_scores)
    assert second.candidate_scores.tolist() == [[0.25, 0.125, 0.25, 0.125]]
    assert second.input_ids.tolist() == [20, 22]
    assert second.hidden_index.tolist() == [0, 1]
    assert second.parents.tolist() == [[2, 4]]
    third = ref.select_top_k_tokens_next(2, p, torch.tensor([[30, 31], [32, 33]]), second.next_scores)
    assert third.parents.tolist() == [[8, 6]]
    assert third.hidden_index.tolist() == [1, 0]
    steps = (first, second, third)
    lists = ([getattr(s, name) for s in steps] for name in ("candidate_scores", "candidate_tokens", "parents"))
    scores, tokens, parents = lists
    results = ref.organize_draft_results(scores, tokens, parents, 5)
    assert results.selected_index.tolist() == [[0, 1, 2, 4]]  # 8 scores 0.25 too, and is the last of them
    assert results.draft_tokens.tolist() == [[10, 11, 20, 22]]
    assert results.parent_list.tolist() == [[-1, 0, 1, 2, 4]]


def test_one_step_hands_on_no_parents() -> None:
    first = ref.select_top_k_tokens_first(torch.tensor([[0.0, 0.5, NAN]]), torch.tensor([[7, 8, 9]]))
    assert first.next_scores.tolist() == [[0.0, 0.5, -INF]]
    results = ref.organize_draft_results([first.candidate_scores], [first.candidate_tokens], [first.parents], 3)
    assert results.parent_list.shape == (1, 0)
    assert results.parent_list.dtype == torch.int64
    assert results.selected_index.tolist() == [[0, 1]]


@given(case=cases(OPS["build_chain_tree"]))
def test_a_chain_is_the_tree_of_topk_1(case: Case) -> None:
    bs, num_steps, ndt = (case.sizes[name] for name in ("bs", "num_steps", "num_draft_tokens"))
    chain = ref.build_chain_tree(**case.tensors)
    selected = torch.arange(num_steps).repeat(bs, 1)
    parent_list = torch.arange(-1, num_steps - 1 if num_steps > 1 else -1).repeat(bs, 1)
    tree = build_tree(parent_list, selected, case.tensors["verified_seq_len"], 1, num_steps, ndt, QLEN_ONLY)
    assert_same(chain[1:], tuple(tree))
    tokens = chain.tokens.view(bs, ndt)
    assert torch.equal(tokens[:, 0], case.tensors["bonus_tokens"].long())
    assert torch.equal(tokens[:, 1:], case.tensors["draft_tokens"])


@given(case=cases(EVERY_OP["build_tree"]))
def test_reconstructing_undoes_building(case: Case) -> None:
    bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
    arguments: dict[str, Any] = {**case.tensors}
    arguments |= {name: case.sizes[name] for name in ("topk", "num_steps", "num_draft_tokens")}
    tree = build_tree(**arguments, tree_mask_mode=QLEN_ONLY)
    links = masks.reconstruct_tree(tree.tree_mask.view(bs, ndt, ndt), case.tensors["verified_seq_len"])
    assert_same(links, tuple(tree[1:]))


def mask_of_links(links: masks.TreeLinks) -> torch.Tensor:
    """The mask of ancestors that the links describe."""
    bs, ndt = links.retrieve_index.shape
    mask = torch.zeros(bs, ndt, ndt, dtype=torch.bool)
    for b in range(bs):
        mask[b, 0, 0] = True
        for parent in range(ndt):
            child = int(links.retrieve_next_token[b, parent])
            while child != -1:
                mask[b, child] = mask[b, parent]
                mask[b, child, child] = True
                child = int(links.retrieve_next_sibling[b, child])
    return mask


@given(case=cases(OPS["reconstruct_tree"]), data=st.data())
def test_a_mask_with_a_flipped_bit_is_another_trees_or_refused(case: Case, data: st.DataObject) -> None:
    mask = case.tensors["tree_mask"].clone()
    index = data.draw(st.integers(0, mask.numel() - 1))
    mask.view(-1)[index] ^= True
    with unchecked():
        links = masks.reconstruct_tree(mask, case.tensors["verified_seq_len"])
    if torch.equal(mask_of_links(links), mask):
        assert_same(masks.reconstruct_tree(mask, case.tensors["verified_seq_len"]), links)
    else:
        with pytest.raises(ValueError, match="rows of a tree"):
            masks.reconstruct_tree(mask, case.tensors["verified_seq_len"])


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 32)), seed=st.integers(0, 2**32))
def test_any_mask_comes_back_from_its_bits(shape: tuple[int, int], seed: int) -> None:
    bs, ndt = shape
    mask = torch.rand(bs, ndt, ndt, generator=torch.Generator().manual_seed(seed)) < 0.5
    packed = masks.pack_tree_mask(mask)
    assert packed.dtype == torch.uint8
    assert packed.shape == (bs, ndt, 1 if ndt <= 8 else 2 if ndt <= 16 else 4)
    assert torch.equal(pack_tree_mask_naive(mask), packed)
    assert torch.equal(masks.unpack_tree_mask(packed), mask)
    assert torch.equal(unpack_tree_mask_naive(packed), mask)
    for node in range(ndt):
        assert torch.equal((packed[:, :, node // 8] >> (node % 8)) & 1, mask[:, :, node].to(torch.uint8))


def test_more_than_32_nodes_are_not_packed_checked_or_not() -> None:
    mask = torch.ones(1, 33, 33, dtype=torch.bool)
    with pytest.raises(ValueError, match="num_draft_tokens is 33; allowed: 1 to 32"):
        masks.pack_tree_mask(mask)
    with unchecked(), pytest.raises(ValueError, match="num_draft_tokens is 33; allowed: 1 to 32"):
        masks.pack_tree_mask(mask)


NEXT: dict[str, Any] = {
    "step": 1,
    "topk_p": torch.tensor([[0.5, 0.25], [1.0, 0.5]]),
    "topk_index": torch.tensor([[1, 2], [3, 4]]),
    "scores": torch.tensor([[0.5, 0.25]]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 0}, r"step is 0; allowed: 1 or more"),
        ({"scores": torch.tensor([[0.5, -0.25]])}, r"scores\[0, 1\] is -0.25; allowed: 0 or more, -inf, NaN"),
        ({"scores": torch.tensor([[1, 0]])}, r"scores has dtype torch.int64; allowed: torch.float32"),
        ({"scores": NEXT["scores"].double()}, r"scores has dtype torch.float64; allowed: torch.float32"),
        ({"topk_p": torch.tensor([[0.5, 1.5], [1, 1]])}, r"topk_p\[0, 1\] is 1.5; allowed: 0 to 1, NaN"),
        ({"topk_p": torch.tensor([[0.5, INF], [1, 1]])}, r"topk_p\[0, 1\] is inf; allowed: 0 to 1, NaN"),
        ({"topk_p": torch.tensor([[0.5, 0.5]])}, r"shape \[1, 2\]; allowed: \[num_rows=2, topk=2\]"),
        ({"topk_index": torch.tensor([[1, 2]])}, r"topk_index has shape \[1, 2\]"),
    ],
)
def test_a_step_refuses_wrong_arguments(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ref.select_top_k_tokens_next(**(NEXT | change))


RERANK = {
    "scores": torch.tensor([[0.5, 0.25, 0.25, 0.125, 0.25, 0.125]]),
    "tokens": torch.tensor([[1, 2, 3, 4, 5, 6]]),
    "parents": torch.tensor([[-1, 0, 1, 2, 4]]),
    "topk": 2,
    "num_steps": 2,
    "num_draft_tokens": 4,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_draft_tokens": 8}, r"num_draft_tokens is 8; allowed: 2 to 7"),
        ({"num_draft_tokens": 1}, r"num_draft_tokens is 1; allowed: 2 to 7"),
        ({"num_steps": 1, "num_draft_tokens": 3}, r"scores has shape \[1, 6\]; allowed: \[bs, total=2\]"),
        ({"parents": torch.tensor([[-1, 0, 1]])}, r"parents has shape \[1, 3\]; allowed: \[bs=1, parent_width=5\]"),
        ({"parents": torch.tensor([[-1, 1, 0, 2, 4]])}, r"parents\[0, 1\] is 1; allowed: -1, 0 .. 1"),
        ({"parents": torch.tensor([[-1, 0, 1, 2, 6]])}, r"\[0, 1\] is 6; allowed: flat ids of the step"),
        (
            {"scores": torch.tensor([[0.5, 0.25, 0.25, 0.125, 0.5, 0.125]])},
            r"\[0, 2\] is 0.5; allowed: at most the score of the parent",
        ),
        (
            {"scores": torch.tensor([[0.5, NAN, 0.25, 0.125, 0.0, NAN]])},
            r"\[0, 2\] is 0.0; allowed: at most the score of the parent",
        ),
    ],
)
def test_keeping_refuses_wrong_arguments_and_children_better_than_their_parent(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ref.rerank_candidates(**(RERANK | change))


def test_organizing_refuses_lists_that_do_not_fit() -> None:
    scores, tokens, parents = torch.tensor([[0.5]]), torch.tensor([[1]]), torch.tensor([[-1, 0]])
    with pytest.raises(ValueError, match="score_list has 0 entries; allowed: one a step"):
        ref.organize_draft_results([], [], [], 2)
    with pytest.raises(ValueError, match="parents_list has 0 entries; allowed: 1, as many as score_list"):
        ref.organize_draft_results([scores], [tokens], [], 2)
    with pytest.raises(ValueError, match=r"token_list\[0\] has shape \[1, 2\]; allowed: \[bs=1, candidates=1\]"):
        ref.organize_draft_results([scores], [parents], [parents], 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ref.select_top_k_tokens_first(torch.tensor([[-0.5]]), torch.tensor([[1]])),
            r"topk_p\[0, 0\] is -0.5; allowed: 0 or more, -inf, NaN",
        ),
        (
            lambda: ref.build_chain_tree(torch.tensor([1]), torch.tensor([[2]]), torch.tensor([0], dtype=torch.int64)),
            r"bonus_tokens has dtype torch.int64; allowed: torch.int32",
        ),
        (
            lambda: ref.build_chain_tree(torch.tensor([1]).int(), torch.tensor([[2]]), torch.tensor([-1])),
            r"verified_seq_len\[0\] is -1; allowed: 0 or more",
        ),
        (
            lambda: ref.build_chain_tree(
                torch.tensor([1]).int(), torch.empty(1, 0, dtype=torch.int64), torch.tensor([0])
            ),
            r"num_steps \(the width of draft_tokens\) is 0; allowed: 1 or more",
        ),
        (
            lambda: masks.reconstruct_tree(torch.ones(1, 2, 2, dtype=torch.bool), torch.tensor([0])),
            r"tree_mask\[0, 0, 1\] is True; allowed: rows of a tree",
        ),
        (
            lambda: masks.reconstruct_tree(torch.eye(3, dtype=torch.bool)[None], torch.tensor([0])),
            r"tree_mask\[0, 1, 0\] is False; allowed: rows of a tree",
        ),
        (
            lambda: masks.pack_tree_mask(torch.ones(1, 2, 3, dtype=torch.bool)),
            r"tree_mask has shape \[1, 2, 3\]",
        ),
        (
            lambda: masks.unpack_tree_mask(torch.tensor([[[1], [7]]], dtype=torch.uint8)),
            r"packed\[0, 1, 0\] is 7; allowed: bits 0 to 1, of the nodes, alone",
        ),
        (
            lambda: masks.unpack_tree_mask(torch.zeros(1, 9, 1, dtype=torch.uint8)),
            r"packed has shape \[1, 9, 1\]; allowed: \[bs, num_draft_tokens, packed_bytes=2\]",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_argument_value_and_what_is_allowed(
    call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@every_op
def test_every_case_fits_its_contract_and_is_left_as_it_was(op: Op) -> None:
    for index in range(SEEDED_CASES):
        chooser = seeded(0, op.name, index)
        case = op.generate(chooser)
        assert len(chooser.tape) < 400
        before = case.clone()
        expected = op.expected(case)
        for arg in op.tensor_args:
            tensor = expected[arg.name] if arg.role is Role.OUT else case.tensors[arg.name]
            assert arg.check(tensor, case.sizes).is_contiguous()
        assert all(torch.equal(case.tensors[name], before.tensors[name]) for name in before.tensors)
        assert all(bool((t.abs() >= 2.0**-126)[t != 0].all()) for t in expected.values() if t.is_floating_point())
        again = op.generate(replayed(chooser.tape))
        assert again.sizes == case.sizes
        assert all(torch.equal(again.tensors[name], case.tensors[name]) for name in case.tensors)


@every_op
def test_choosing_nothing_gives_the_simplest_case(op: Op) -> None:
    case = op.generate(replayed(()))
    assert [case.sizes[name] for name in ("bs", "topk", "num_steps", "num_draft_tokens")] == [1, 1, 1, 2]


@every_op
def test_contracts_name_every_argument_of_the_reference(op: Op) -> None:
    assert all(arg.doc for arg in op.args)
    tensors = {arg.name for arg in op.args if isinstance(arg, TensorArg) and arg.role is Role.IN}
    assert tensors == set(op.generate(replayed(())).tensors)


def test_ties_zeros_infinities_and_underflow_are_drawn_often() -> None:
    seen = dict.fromkeys(("tied best", "tied last", "zero", "infinite", "underflow", "NaN product"), 0)
    for index in range(SEEDED_CASES):
        case = OPS["select_top_k"].generate(seeded(0, "select_top_k", index))
        result = OPS["select_top_k"].expected(case)
        p, parent, scores = case.tensors["topk_p"], case.tensors["scores"], result["candidate_scores"]
        product = parent.flatten()[:, None] * p
        ordered = scores.sort(dim=1, descending=True).values
        topk = case.sizes["topk"]
        if topk > 1:
            seen["tied best"] += bool((ordered[:, 0] == ordered[:, 1]).any())
            seen["tied last"] += bool((ordered[:, topk - 1] == ordered[:, topk]).any())
        seen["zero"] += bool((scores == 0).any())
        seen["infinite"] += bool((scores == INF).any())
        seen["underflow"] += bool(((product == 0) & (p > 0) & (parent.flatten()[:, None] > 0)).any())
        seen["NaN product"] += bool(product.isnan().any())
    assert min(seen.values()) >= 20, seen


def test_candidates_tie_with_their_parents_and_at_the_last_place_kept() -> None:
    last_place, with_parent, infinite, sizes = 0, 0, 0, set()
    for index in range(SEEDED_CASES):
        case = OPS["organize_draft_results"].generate(seeded(0, "organize_draft_results", index))
        scores, kept, topk = case.tensors["scores"], case.sizes["num_selected"], case.sizes["topk"]
        ordered = scores.sort(dim=1, descending=True).values
        last_place += kept < case.sizes["total"] and bool((ordered[:, kept - 1] == ordered[:, kept]).any())
        group = torch.arange(topk, case.sizes["total"]) // topk
        parent_scores = scores.gather(1, case.tensors["parents"][:, group])
        with_parent += bool((parent_scores == scores[:, topk:]).any())
        infinite += bool(scores.isinf().any())
        sizes.add(case.sizes["num_draft_tokens"])
    assert min(last_place, with_parent, infinite) >= 30, (last_place, with_parent, infinite)
    assert {2, 64} <= sizes


def test_packed_masks_end_at_and_after_the_end_of_a_byte() -> None:
    chosen = [OPS["pack_tree_mask"].generate(seeded(0, "pack_tree_mask", index)) for index in range(SEEDED_CASES)]
    nodes = [case.sizes["num_draft_tokens"] for case in chosen]
    assert min(nodes.count(ndt) for ndt in (8, 9, 16, 17, 32)) >= 5
    assert max(nodes) == 32
