"""Logit processing: every node of a tree sees the history of its own path; filters keep what their definition says."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from property_tests.naive import NAIVE
from specsim.choices.chooser import seeded
from specsim.contracts import logits as family
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.logits import TOP_K_ALL
from specsim.reference import logits as logit_functions
from specsim.reference import sequential
from specsim.reference.logits import (
    EXACT,
    JOINT,
    NAN_HIGHEST,
    NAN_LOWEST,
    RELAXED,
    TOP_K_FIRST,
    SamplingBatchInfo,
    accumulate_penalties,
    apply_token_bitmask,
    min_p_renorm_probs,
    row_argmax,
    temperature_softmax,
    top_k_renorm_probs,
    top_p_renorm_probs,
    total_variation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from specsim.contracts.contract import Case, Op, Tensors

# Values of dictionaries are spread into these, which their signatures do not let mypy follow.
apply_penalties: Callable[..., None] = logit_functions.apply_penalties
process_logits: Callable[..., Tensor] = logit_functions.process_logits

OPS = {op.name: op for op in family.OPS}
ACCUMULATE, PENALTIES, BITMASK = OPS["accumulate_penalties"], OPS["apply_penalties"], OPS["apply_token_bitmask"]
ARGMAX, SOFTMAX = OPS["row_argmax"], OPS["temperature_softmax"]
TOP_K, TOP_P, MIN_P = OPS["top_k_renorm_probs"], OPS["top_p_renorm_probs"], OPS["min_p_renorm_probs"]

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
ROW_OPS = [ARGMAX, SOFTMAX, TOP_K, TOP_P, MIN_P]
every_row_op = pytest.mark.parametrize("op", ROW_OPS, ids=lambda op: op.name)
every_filter = pytest.mark.parametrize("op", [TOP_K, TOP_P, MIN_P], ids=lambda op: op.name)
INFINITY, NAN = float("inf"), float("nan")
NAN_STAND_IN = 12345.0  # torch.equal finds NaN unequal to itself


@cache
def seeded_cases(name: str) -> list[Case]:
    return [OPS[name].generate(seeded(0, name, index)) for index in range(150)]


def in_float64(case: Case) -> Case:
    tensors = {n: t.to(torch.float64) if t.is_floating_point() else t for n, t in case.clone().tensors.items()}
    return type(case)(case.sizes, tensors)


def run(op: Op, case: Case, **changes: Any) -> Tensors:
    """The outputs by name, with other values for some of the arguments."""
    scalars = {n: v for n, v in changes.items() if isinstance(v, int)}
    tensors = {**case.clone().tensors, **{n: t.clone() for n, t in changes.items() if isinstance(t, Tensor)}}
    arguments = {arg.name: {**case.sizes, **scalars}.get(arg.name, tensors.get(arg.name)) for arg in op.args}
    outs = [arg.name for arg in op.outputs if arg.name not in tensors]
    for name in outs:
        del arguments[name]
    returned = op.reference(**arguments)
    return {outs[0]: returned} if outs else {arg.name: tensors[arg.name] for arg in op.outputs}


def assert_same(op: Op, results: Tensors, others: Tensors) -> None:
    for name, tensor in results.items():
        assert tensor.dtype == others[name].dtype
        assert torch.allclose(tensor, others[name], rtol=0, atol=op.tolerance.get(name, 0), equal_nan=True), name


def part(op: Op, case: Case, which: list[int]) -> Case:
    """Some of the requests, in the given order, as a batch of their own."""
    bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
    tensors = {}
    for arg in op.tensor_args:
        if arg.name == "indices":
            masked = case.tensors["indices"].view(bs, -1)[which] % ndt
            tensors["indices"] = (masked + torch.arange(len(which))[:, None] * ndt).flatten().to(torch.int32)
        elif arg.name in case.tensors:
            tensor = case.tensors[arg.name]
            tensors[arg.name] = tensor.view(bs, -1, *tensor.shape[1:])[which].flatten(0, 1)
    return type(case)(case.sizes, tensors)


@every_op
@settings(max_examples=20)
@given(data=st.data())
def test_requests_are_independent_of_their_batch_and_its_order(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    bs = case.sizes["bs"]
    whole = run(op, case)
    which = data.draw(st.lists(st.integers(0, bs - 1), min_size=1, unique=True))
    chosen = run(op, part(op, case, which))
    for name, tensor in whole.items():
        expected = tensor.view(bs, -1, *tensor.shape[1:])[which].flatten(0, 1)
        assert torch.equal(chosen[name].nan_to_num(NAN_STAND_IN), expected.nan_to_num(NAN_STAND_IN)), name


@every_op
def test_inputs_stay_as_they_are(op: Op) -> None:
    inputs = {arg.name for arg in op.tensor_args} - {arg.name for arg in op.outputs}
    for case in seeded_cases(op.name)[:30]:
        before = case.clone().tensors
        tensors = {**before, **{name: case.tensors[name] for name in inputs}}
        op.call(op.reference, case.sizes, {**tensors, **op.allocate_outputs(case)})
        for name in inputs:
            assert torch.equal(
                case.tensors[name].double().nan_to_num(NAN_STAND_IN), before[name].double().nan_to_num(NAN_STAND_IN)
            )


# Penalties


def on_a_path(case: Case, b: int, node: int) -> Tensor:
    """The logits of a node as decoding token by token gives them: each draft of its path is put out, one a step."""
    tensors = case.tensors
    counts, lens = tensors["output_counts"][b : b + 1].clone(), tensors["output_lens"][b : b + 1].clone()
    for ancestor in range(1, node + 1):
        if tensors["tree_mask"][b, node, ancestor]:
            token = tensors["candidates"][b, ancestor].view(1, 1).to(torch.int32)
            accumulate_penalties(counts, lens, token, torch.ones(1, dtype=torch.int32), EXACT)
    row = tensors["logits"][b * case.sizes["num_draft_tokens"] + node][None].clone()
    own = [tensors[name][b : b + 1] for name in SamplingBatchInfo._fields[:6]]
    apply_penalties(row, counts, lens, torch.zeros((1, 1), dtype=torch.int64), ONE_NODE, *own, law=RELAXED)
    return row[0]


ONE_NODE = torch.ones((1, 1, 1), dtype=torch.bool)


@settings(max_examples=30)
@given(case=cases(PENALTIES), data=st.data())
def test_a_node_sees_the_history_of_its_own_path(case: Case, data: st.DataObject) -> None:
    bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
    exact = run(PENALTIES, case, law=EXACT)["logits"]
    b = data.draw(st.integers(0, bs - 1))
    for node in range(ndt):
        assert torch.equal(exact[b * ndt + node], on_a_path(case, b, node))


@given(case=cases(PENALTIES))
def test_the_distributions_differ_only_below_the_root_and_at_tokens_of_the_path_or_stop_tokens(case: Case) -> None:
    bs, ndt = case.sizes["bs"], case.sizes["num_draft_tokens"]
    exact = run(PENALTIES, case, law=EXACT)["logits"].view(bs, ndt, -1)
    relaxed = run(PENALTIES, case, law=RELAXED)["logits"].view(bs, ndt, -1)
    assert torch.equal(exact[:, 0], relaxed[:, 0])
    for b, node, token in (exact != relaxed).nonzero().tolist():
        path = case.tensors["candidates"][b, 1:][case.tensors["tree_mask"][b, node, 1:]].tolist()
        assert token in path or token in case.tensors["stop_token_ids"][b].tolist()


@given(case=cases(PENALTIES))
def test_the_relaxed_distribution_reads_neither_drafts_nor_tree(case: Case) -> None:
    chain = torch.ones_like(case.tensors["tree_mask"]).tril()
    tokens = torch.zeros_like(case.tensors["candidates"])
    other = run(PENALTIES, case, law=RELAXED, candidates=tokens, tree_mask=chain)
    assert torch.equal(run(PENALTIES, case, law=RELAXED)["logits"], other["logits"])


@given(case=cases(PENALTIES), data=st.data())
def test_relabelling_the_tokens_relabels_the_logits(case: Case, data: st.DataObject) -> None:
    vocab_size = case.sizes["vocab_size"]
    new_name = (torch.arange(vocab_size) * 5 + data.draw(st.integers(0, vocab_size - 1))) % vocab_size
    if vocab_size % 5 == 0:
        new_name = new_name.argsort(stable=True)
    old_name = new_name.argsort()
    with_padding = torch.cat([new_name, torch.tensor([vocab_size])])
    changes = {name: case.tensors[name][:, old_name] for name in ("logits", "output_counts", "logit_bias")}
    changes |= {"candidates": new_name[case.tensors["candidates"]]}
    changes |= {"stop_token_ids": with_padding[case.tensors["stop_token_ids"]]}
    assert torch.equal(run(PENALTIES, case, **changes)["logits"], run(PENALTIES, case)["logits"][:, old_name])


@given(case=cases(PENALTIES), extra=st.integers(1, 40))
def test_padding_the_vocabulary_changes_no_logit(case: Case, extra: int) -> None:
    vocab_size, stop = case.sizes["vocab_size"], case.tensors["stop_token_ids"]
    wider = {"stop_token_ids": torch.where(stop == vocab_size, vocab_size + extra, stop)}
    for name, value in (("logits", -INFINITY), ("output_counts", 0), ("logit_bias", 0)):
        wider[name] = torch.nn.functional.pad(case.tensors[name], (0, extra), value=value)
    padded = run(PENALTIES, case, **wider)["logits"]
    assert torch.equal(padded[:, :vocab_size], run(PENALTIES, case)["logits"])
    assert bool(padded[:, vocab_size:].isneginf().all())


def chain_of(tokens: list[int], vocab_size: int) -> dict[str, Tensor]:
    """History and tree of one request that has put out `tokens[0]` and drafts the others, one after the other."""
    counts = torch.zeros((1, vocab_size), dtype=torch.int32)
    counts[0, tokens[0]] = 1
    return {
        "output_counts": counts,
        "output_lens": torch.ones(1, dtype=torch.int32),
        "candidates": torch.tensor([tokens]),
        "tree_mask": torch.ones((1, len(tokens), len(tokens)), dtype=torch.bool).tril(),
    }


def params_of(bs: int, vocab_size: int, **changes: Tensor | float) -> SamplingBatchInfo:
    """Parameters in float64 that change nothing, but for some."""
    neutral = SamplingBatchInfo(
        frequency_penalty=torch.zeros(bs, dtype=torch.float64),
        presence_penalty=torch.zeros(bs, dtype=torch.float64),
        repetition_penalty=torch.ones(bs, dtype=torch.float64),
        min_new_tokens=torch.zeros(bs, dtype=torch.int32),
        stop_token_ids=torch.full((bs, 1), vocab_size),
        logit_bias=torch.zeros((bs, vocab_size), dtype=torch.float64),
        temperature=torch.ones(bs, dtype=torch.float64),
        top_k=torch.full((bs,), TOP_K_ALL, dtype=torch.int32),
        top_p=torch.ones(bs, dtype=torch.float64),
        min_p=torch.zeros(bs, dtype=torch.float64),
    )
    tensors = {
        name: value if isinstance(value, Tensor) else torch.full_like(getattr(neutral, name), value)
        for name, value in changes.items()
    }
    return neutral._replace(**tensors)


def test_a_token_drafted_again_and_again_is_held_back_by_the_exact_distribution_alone() -> None:
    # The target prefers 3 to 4 by 1/4; after one 3 a frequency penalty of 1/2 makes it prefer 4. SGLang PR #22049.
    logits = torch.tensor([[-INFINITY, -INFINITY, -INFINITY, 5.0, 4.75]] * 4, dtype=torch.float64)
    chain, params = chain_of([0, 3, 3, 3], 5), params_of(1, 5, frequency_penalty=0.5)
    greedy = {}
    for law in (EXACT, RELAXED):
        penalised = logits.clone()
        apply_penalties(penalised, *chain.values(), *params[:6], law=law)
        greedy[law] = row_argmax(penalised, NAN_HIGHEST).tolist()
    assert greedy == {EXACT: [3, 4, 4, 4], RELAXED: [3, 3, 3, 3]}

    exact, relaxed = (process_logits(logits, *chain.values(), params, law) for law in (EXACT, RELAXED))
    times_drafted = torch.arange(4, dtype=torch.float64)
    expected = torch.tensor(0.25, dtype=torch.float64).sigmoid() - (0.25 - 0.5 * times_drafted).sigmoid()
    # Six operations of float64, each off by at most 2^-52 of a probability.
    assert torch.allclose(total_variation(exact, relaxed), expected, rtol=0, atol=2.0**-48)
    assert total_variation(exact, relaxed)[0] == 0


def test_presence_and_repetition_count_a_repeated_token_once() -> None:
    logits = torch.tensor([[4.0, -4.0, 4.0]] * 4, dtype=torch.float64)
    params = params_of(1, 3, frequency_penalty=0.25, presence_penalty=1.0, repetition_penalty=2.0)
    chain = chain_of([2, 0, 0, 1], 3)
    apply_penalties(logits, *chain.values(), *params[:6], law=EXACT)
    root = (4 - 0.25 - 1) / 2
    assert logits.tolist() == [
        [4, -4, root],
        [(4 - 0.25 - 1) / 2, -4, root],
        [(4 - 0.5 - 1) / 2, -4, root],
        [(4 - 0.5 - 1) / 2, (-4 - 0.25 - 1) * 2, root],
    ]


def test_stop_tokens_are_masked_until_enough_tokens_are_out_on_the_path() -> None:
    params = params_of(1, 5, min_new_tokens=3, stop_token_ids=torch.tensor([[4, 1, 5]]))
    chain = chain_of([0, 2, 2, 2], 5)  # histories of 1, 2, 3 and 4 tokens
    for law, masked_nodes in ((EXACT, 2), (RELAXED, 4)):
        logits = torch.zeros((4, 5), dtype=torch.float64)
        apply_penalties(logits, *chain.values(), *params[:6], law=law)
        assert logits[:, [0, 2, 3]].isfinite().all()
        assert logits[:, [1, 4]].isneginf().all(dim=1).tolist() == [node < masked_nodes for node in range(4)]


@given(case=cases(PENALTIES))
def test_parameters_that_change_nothing_leave_the_logits(case: Case) -> None:
    zeros, ones = torch.zeros_like(case.tensors["frequency_penalty"]), torch.ones_like(case.tensors["logit_bias"])
    changes = {"frequency_penalty": zeros, "presence_penalty": zeros, "repetition_penalty": zeros + 1}
    changes |= {"min_new_tokens": zeros.to(torch.int32), "logit_bias": 0 * ones}
    assert torch.equal(run(PENALTIES, case, **changes)["logits"], case.tensors["logits"])


# Accumulation

STEPS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=6)


def fed(steps: list[list[int]], law: int) -> tuple[list[int], int]:
    """Counts and length after all steps."""
    counts, lens = torch.zeros((1, 5), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for emitted in steps:
        padded = torch.tensor([emitted + [4] * (4 - len(emitted))], dtype=torch.int32)
        accumulate_penalties(counts, lens, padded, torch.tensor([len(emitted)], dtype=torch.int32), law)
    return counts[0].tolist(), int(lens)


@given(steps=STEPS)
def test_exact_counts_are_a_recount_of_all_output_however_it_was_split_into_steps(steps: list[list[int]]) -> None:
    output = [token for emitted in steps for token in emitted]
    assert fed(steps, EXACT) == ([output.count(token) for token in range(5)], len(output))
    assert fed(steps, EXACT) == fed([[token] for token in output], EXACT)


@given(steps=STEPS)
def test_the_last_token_alone_falls_behind_by_the_other_accepted_tokens(steps: list[list[int]]) -> None:
    missed = [token for emitted in steps for token in emitted[:-1]]
    exact, relaxed = fed(steps, EXACT), fed(steps, RELAXED)
    assert [n - m for n, m in zip(exact[0], relaxed[0], strict=True)] == [missed.count(token) for token in range(5)]
    assert exact[1] - relaxed[1] == sum(len(emitted) - 1 for emitted in steps)


@given(steps=STEPS.filter(len))
def test_the_exact_distribution_after_a_step_is_the_one_of_the_last_accepted_node(steps: list[list[int]]) -> None:
    *before, last = steps
    counts, length = fed(before, EXACT)
    tree = chain_of([0, *last], 5)
    tree |= {"output_counts": torch.tensor([counts], dtype=torch.int32)}
    tree |= {"output_lens": torch.tensor([length], dtype=torch.int32)}
    after = chain_of([last[-1]], 5)
    counts, length = fed(steps, EXACT)
    after |= {"output_counts": torch.tensor([counts], dtype=torch.int32)}
    after |= {"output_lens": torch.tensor([length], dtype=torch.int32)}
    params = params_of(1, 5, frequency_penalty=0.5, presence_penalty=1.0, repetition_penalty=2.0, min_new_tokens=6)
    params = params._replace(stop_token_ids=torch.tensor([[3]]))
    logits = torch.tensor([[2.0, 1.0, -3.0, 0.5, 4.0]], dtype=torch.float64)
    on_the_tree, on_the_next_root = logits.repeat(1 + len(last), 1), logits.clone()
    apply_penalties(on_the_tree, *tree.values(), *params[:6], law=EXACT)
    apply_penalties(on_the_next_root, *after.values(), *params[:6], law=EXACT)
    assert torch.equal(on_the_tree[-1], on_the_next_root[0])


@given(case=cases(ACCUMULATE))
def test_what_follows_the_accepted_tokens_is_not_counted(case: Case) -> None:
    beyond = torch.arange(case.sizes["accept_width"]) >= case.tensors["accept_lens"][:, None]
    tokens = torch.where(beyond, 3 - case.tensors["accept_tokens"] % 4, case.tensors["accept_tokens"])
    assert_same(ACCUMULATE, run(ACCUMULATE, case), run(ACCUMULATE, case, accept_tokens=tokens))


# The grammar's mask


def allowed_tokens(words: list[int], vocab_size: int) -> list[bool]:
    bits = sum((word % 2**32) << (32 * i) for i, word in enumerate(words))
    return [bits >> token & 1 == 1 for token in range(vocab_size)]


@given(case=cases(BITMASK))
def test_a_zero_bit_forbids_its_token_in_the_masked_rows_alone(case: Case) -> None:
    before, after = case.tensors["logits"].tolist(), run(BITMASK, case)["logits"].tolist()
    masked = set(case.tensors["indices"].tolist())
    for row, words in enumerate(case.tensors["bitmask"].tolist()):
        allowed = allowed_tokens(words, case.sizes["vocab_size"]) if row in masked else [True] * len(before[row])
        assert after[row] == [old if stays else -INFINITY for old, stays in zip(before[row], allowed, strict=True)]


@given(case=cases(BITMASK))
def test_bits_beyond_the_vocabulary_mean_nothing(case: Case) -> None:
    flipped = case.tensors["bitmask"].clone()
    used = case.sizes["vocab_size"] % 32
    if used:
        flipped[:, -1] ^= -1 << used
    assert_same(BITMASK, run(BITMASK, case), run(BITMASK, case, bitmask=flipped))


@given(case=cases(BITMASK))
def test_masking_twice_masks_once_in_any_order_of_the_rows(case: Case) -> None:
    once = run(BITMASK, case)
    backwards = case.tensors["indices"].flip(0).repeat(2)
    assert_same(BITMASK, once, run(BITMASK, case, logits=once["logits"], indices=backwards))


# Greedy


@given(case=cases(ARGMAX))
def test_the_greedy_token_is_the_lowest_of_the_highest(case: Case) -> None:
    for policy in (NAN_HIGHEST, NAN_LOWEST):
        ids = run(ARGMAX, case, nan_policy=policy)["ids"].tolist()
        for row, best in zip(case.tensors["logits"].tolist(), ids, strict=True):
            nans = [token for token, value in enumerate(row) if value != value]
            values = [-INFINITY if value != value else value for value in row]
            assert best == (nans[0] if nans and policy == NAN_HIGHEST else values.index(max(values)))


@pytest.mark.parametrize(
    ("row", "highest", "lowest"),
    [
        ([1.0, NAN, 2.0, NAN], 1, 2),
        ([NAN, INFINITY, NAN, INFINITY], 0, 1),
        ([NAN, NAN], 0, 0),
        ([-INFINITY, NAN], 1, 0),
        ([NAN, -INFINITY], 0, 0),
        ([-0.0, 0.0], 0, 0),
        ([-INFINITY, -INFINITY], 0, 0),
    ],
)
def test_nan_wins_or_counts_as_minus_infinity(row: list[float], highest: int, lowest: int) -> None:
    logits = torch.tensor([row])
    assert row_argmax(logits, NAN_HIGHEST).tolist() == [highest]
    assert row_argmax(logits, NAN_LOWEST).tolist() == [lowest]


# Distributions and filters


@given(case=cases(SOFTMAX))
def test_a_softmax_is_a_distribution_and_forbidden_tokens_have_no_part_in_it(case: Case) -> None:
    probs = run(SOFTMAX, in_float64(case))["probs"]
    assert torch.allclose(probs.sum(1), torch.ones(1, dtype=torch.float64), rtol=0, atol=2.0**-44)
    assert torch.equal(probs > 0, case.tensors["logits"].isfinite())
    assert bool((probs[case.tensors["logits"].isfinite().sum(1) == 1].amax(1) == 1).all())


@given(case=cases(SOFTMAX))
def test_the_stated_tolerance_covers_float32(case: Case) -> None:
    single, double = run(SOFTMAX, case)["probs"], run(SOFTMAX, in_float64(case))["probs"]
    assert float((single - double).abs().max()) <= SOFTMAX.tolerance["probs"] / 8


def test_the_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    probs = temperature_softmax(logits, torch.tensor([1.0, 0.25], dtype=torch.float64))
    expected = torch.tensor([1.0, 4.0], dtype=torch.float64).sigmoid()
    assert torch.allclose(probs[:, 1], expected, rtol=0, atol=2.0**-50)


def kept_by_definition(op: Op, row: list[Fraction], limit: float) -> set[Fraction]:
    """The probabilities that stay: those above them are fewer than k, or have less than p together; ties are equals."""
    above = {prob: [other for other in row if other > prob] for prob in set(row)}
    if op is TOP_K:
        return {prob for prob, higher in above.items() if len(higher) < limit}
    if op is TOP_P:
        return {prob for prob, higher in above.items() if sum(higher) < Fraction(limit)}
    return {prob for prob in above if prob >= Fraction(limit) * max(row)}


@every_filter
@settings(max_examples=30)
@given(data=st.data())
def test_filters_keep_what_their_definition_says(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    limits = case.tensors[op.args[1].name][:20].tolist()
    renormed = run(op, in_float64(case))["renorm_probs"][:20].tolist()
    for row, limit, result in zip(case.tensors["probs"][:20].tolist(), limits, renormed, strict=True):
        kept = kept_by_definition(op, [Fraction(prob) for prob in row], limit)
        total = sum(prob for prob in row if prob in kept)  # of multiples of 1/64: without rounding
        assert result == [prob / total if prob in kept else 0 for prob in row]


@every_filter
@given(data=st.data())
def test_a_limit_that_keeps_all_changes_nothing(op: Op, data: st.DataObject) -> None:
    case = in_float64(data.draw(cases(op)))
    probs = case.tensors["probs"]
    neutral = {"top_k": case.sizes["vocab_size"], "top_p": 1, "min_p": 0}
    limit = torch.full_like(case.tensors[op.args[1].name], neutral[op.args[1].name])
    assert torch.equal(run(op, case, **{op.args[1].name: limit})["renorm_probs"], probs)


@every_filter
@pytest.mark.parametrize("is_naive", [False, True])
def test_a_limit_that_keeps_all_changes_no_bit_of_a_row_whose_sum_is_rounded(op: Op, is_naive: bool) -> None:
    probs = torch.randn(50, 200, generator=torch.Generator().manual_seed(1)).softmax(dim=1)
    assert bool((probs.sum(dim=1) != 1).any())
    limit = {"top_k": torch.full((50,), 200), "top_p": torch.ones(50), "min_p": torch.zeros(50)}[op.args[1].name]
    function = NAIVE[op.name] if is_naive else op.reference
    assert torch.equal(function(probs, limit.int() if op is TOP_K else limit), probs)


FILTERS: list[tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = [
    (top_k_renorm_probs, torch.tensor([1], dtype=torch.int32)),
    (top_p_renorm_probs, torch.tensor([1e-30])),
    (min_p_renorm_probs, torch.tensor([1.0])),
]


@pytest.mark.parametrize(("keep", "limit"), FILTERS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_strictest_limit_keeps_the_most_probable_tokens_all_of_them(
    keep: Callable[[Tensor, Tensor], Tensor], limit: Tensor
) -> None:
    assert keep(torch.tensor([[0.25, 0.125, 0.25, 0.375]]), limit).tolist() == [[0, 0, 0, 1]]
    assert keep(torch.tensor([[0.375, 0.125, 0.125, 0.375]]), limit).tolist() == [[0.5, 0, 0, 0.5]]


def test_top_p_on_a_cumulative_sum_keeps_that_many_and_just_above_it_one_more() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 3)
    edge = torch.tensor(0.75)
    top_p = torch.stack([torch.nextafter(edge, torch.tensor(0.0)), edge, torch.nextafter(edge, torch.tensor(1.0))])
    assert (top_p_renorm_probs(probs, top_p) > 0).sum(1).tolist() == [2, 2, 4]  # the last two are equal


def test_top_p_one_keeps_a_tail_that_the_sum_no_longer_feels() -> None:
    probs = torch.tensor([[1.0, 2.0**-40]])  # in float32 they add up to 1
    assert (top_p_renorm_probs(probs, torch.tensor([1.0])) > 0).tolist() == [[True, True]]


def test_top_k_keeps_more_than_k_where_the_last_has_equals() -> None:
    probs = torch.tensor([[0.125, 0.5, 0.125, 0.125, 0.125]] * 3)
    kept = top_k_renorm_probs(probs, torch.tensor([1, 2, TOP_K_ALL], dtype=torch.int32)) > 0
    assert kept.sum(1).tolist() == [1, 5, 5]


@every_row_op
@settings(max_examples=30)
@given(data=st.data())
def test_padding_the_vocabulary_pads_the_result(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    name, value = ("probs", 0.0) if "probs" in case.tensors else ("logits", -INFINITY)
    padded = torch.nn.functional.pad(case.tensors[name], (0, 33), value=value)
    (wide,), (narrow,) = run(op, case, **{name: padded}).values(), run(op, case).values()
    if op is ARGMAX:
        assert torch.equal(wide, narrow)
        return
    assert bool((wide[:, case.sizes["vocab_size"] :] == 0).all())
    assert_same(op, {"probs": wide[:, : case.sizes["vocab_size"]]}, {"probs": narrow})


@every_row_op
@settings(max_examples=30)
@given(data=st.data())
def test_relabelling_the_tokens_relabels_the_distribution(op: Op, data: st.DataObject) -> None:
    case = data.draw(cases(op))
    if op is ARGMAX:
        steps = torch.arange(case.sizes["vocab_size"]) / 64  # below the distance of different logits, without ties
        case = type(case)(case.sizes, {"logits": (steps + torch.zeros_like(case.tensors["logits"]))})
    name = "probs" if "probs" in case.tensors else "logits"
    (own,), (mirrored,) = run(op, case).values(), run(op, case, **{name: case.tensors[name].flip(1)}).values()
    if op is ARGMAX:
        assert torch.equal(mirrored, case.sizes["vocab_size"] - 1 - own)
    else:
        assert_same(op, {"probs": mirrored.flip(1)}, {"probs": own})


# All steps


def random_batch(seed: int, vocab_size: int = 9) -> tuple[Tensor, dict[str, Tensor], SamplingBatchInfo, Tensor]:
    """Logits, history and trees, parameters and bitmask of two requests with chains of four nodes, in float64."""
    draw = torch.Generator().manual_seed(seed)
    bs, ndt = 2, 4
    counts = torch.randint(0, 3, (bs, vocab_size), generator=draw, dtype=torch.int32)
    trees = {
        "output_counts": counts,
        "output_lens": counts.sum(1).to(torch.int32),
        "candidates": torch.randint(0, 3, (bs, ndt), generator=draw),
        "tree_mask": torch.ones((bs, ndt, ndt), dtype=torch.bool).tril(),
    }
    frequency, presence, repetition = torch.randint(1, 16, (3, bs), generator=draw).double() / 8
    params = SamplingBatchInfo(
        frequency,
        presence,
        repetition,
        min_new_tokens=torch.stack([counts[0].sum() + 2, torch.tensor(0)]).to(torch.int32),
        stop_token_ids=torch.tensor([[vocab_size - 1, vocab_size], [0, 1]]),
        logit_bias=torch.randn((bs, vocab_size), generator=draw, dtype=torch.float64),
        temperature=torch.rand(bs, generator=draw, dtype=torch.float64) + 0.5,
        top_k=torch.tensor([3, vocab_size], dtype=torch.int32),
        top_p=torch.tensor([1.0, 0.7], dtype=torch.float64),
        min_p=torch.tensor([0.1, 0.2], dtype=torch.float64),
    )
    bitmask = torch.randint(2**vocab_size, (bs * ndt, 1), generator=draw, dtype=torch.int32) | 1 << 4
    return torch.randn((bs * ndt, vocab_size), generator=draw, dtype=torch.float64), trees, params, bitmask


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), order=st.sampled_from([TOP_K_FIRST, JOINT]))
def test_the_exact_distribution_of_every_node_is_that_of_decoding_token_by_token(seed: int, order: int) -> None:
    logits, trees, params, bitmask = random_batch(seed)
    before = logits.clone()
    params = params._replace(top_p=torch.tensor([0.8, 0.7], dtype=torch.float64))
    probs = process_logits(logits, *trees.values(), params, EXACT, bitmask, filter_apply_order=order)
    assert torch.equal(logits, before)
    for row in range(8):
        b, node = row // 4, row % 4
        outputs = [token for token, count in enumerate(trees["output_counts"][b].tolist()) for _ in range(count)]
        outputs += trees["candidates"][b, 1 : node + 1].tolist()
        asked = sequential.SamplingParams(
            **{name: getattr(params, name)[b].item() for name in NUMBERS},
            stop_token_ids=tuple(token for token in params.stop_token_ids[b].tolist() if token < 9),
            logit_bias=dict(enumerate(params.logit_bias[b].tolist())),
        )
        allowed = torch.tensor(allowed_tokens(bitmask[row].tolist(), 9))
        expected = sequential.next_token_law(logits[row], outputs, [], asked, allowed, order)
        assert torch.equal(probs[row] > 0, expected > 0)
        assert torch.allclose(probs[row], expected, rtol=0, atol=2.0**-40)


@pytest.mark.parametrize(("order", "kept"), [(TOP_K_FIRST, 3), (JOINT, 4)])
def test_joint_filters_look_at_the_distribution_before_either(order: int, kept: int) -> None:
    dist = torch.tensor([32.0, 16, 8, 5, 3], dtype=torch.float64) / 64  # three tokens have 56 of 64, and 56 of 61
    asked = sequential.SamplingParams(top_k=4, top_p=0.9)
    expected = sequential.next_token_law(dist.log(), [], [], asked, filter_apply_order=order)
    assert expected.nonzero()[:, 0].tolist() == list(range(kept))
    nothing = torch.zeros(1, dtype=torch.float64)
    params = SamplingBatchInfo(
        frequency_penalty=nothing,
        presence_penalty=nothing,
        repetition_penalty=nothing + 1,
        min_new_tokens=torch.zeros(1, dtype=torch.int32),
        stop_token_ids=torch.zeros((1, 0), dtype=torch.int64),
        logit_bias=torch.zeros((1, 5), dtype=torch.float64),
        temperature=nothing + 1,
        top_k=torch.tensor([4], dtype=torch.int32),
        top_p=nothing + 0.9,
        min_p=nothing,
    )
    history = (torch.zeros((1, 5), dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.zeros((1, 1)).long())
    mask = torch.ones((1, 1, 1), dtype=torch.bool)
    probs = process_logits(dist.log()[None], *history, mask, params, EXACT, filter_apply_order=order)
    assert torch.allclose(probs[0], expected, rtol=0, atol=2.0**-40)


def test_an_unknown_order_of_filters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"filter_apply_order is 2; allowed: TOP_K_FIRST \(0\), JOINT \(1\)"):
        sequential.next_token_law(torch.zeros(3), [], [], sequential.SamplingParams(), filter_apply_order=2)


NUMBERS = (
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), law=st.sampled_from((EXACT, RELAXED)))
def test_all_steps_together_are_the_steps_one_after_the_other(seed: int, law: int) -> None:
    logits, trees, params, bitmask = random_batch(seed)
    probs = process_logits(logits, *trees.values(), params, law, bitmask, lambda rows: rows.mul_(0.5))
    NAIVE[PENALTIES.name](logits, *trees.values(), *params[:6], law=law)
    NAIVE[BITMASK.name](logits, bitmask, torch.arange(8, dtype=torch.int32))
    temperature, *limits = (of_request.repeat_interleave(4) for of_request in params[6:])
    looped = NAIVE[SOFTMAX.name](0.5 * logits, temperature)
    for op, limit in zip((TOP_K, TOP_P, MIN_P), limits, strict=True):
        looped = NAIVE[op.name](looped, limit)
    assert torch.equal(probs > 0, looped > 0)
    assert torch.allclose(probs, looped, rtol=0, atol=2.0**-40)
    assert torch.allclose(probs.sum(1), torch.ones(1, dtype=torch.float64), rtol=0, atol=2.0**-48)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_the_distance_of_the_distributions_is_zero_at_the_root_and_without_penalties(seed: int) -> None:
    logits, trees, params, bitmask = random_batch(seed)
    exact, relaxed = (process_logits(logits, *trees.values(), params, law, bitmask) for law in (EXACT, RELAXED))
    assert total_variation(exact, relaxed).view(2, 4)[:, 0].tolist() == [0, 0]
    params = params_of(2, 9, top_k=params.top_k, temperature=params.temperature)
    exact, relaxed = (process_logits(logits, *trees.values(), params, law, bitmask) for law in (EXACT, RELAXED))
    assert torch.equal(exact, relaxed)


def test_no_bias_brings_back_a_forbidden_token_and_a_custom_processor_does() -> None:
    logits, chain = torch.zeros((1, 4), dtype=torch.float64), chain_of([0], 4)
    bias = torch.tensor([[0.0, 100.0, 0.0, 0.0]], dtype=torch.float64)
    params, grammar = params_of(1, 4, logit_bias=bias), torch.tensor([[0b1101]], dtype=torch.int32)
    probs = process_logits(logits, *chain.values(), params, EXACT, grammar)
    assert probs[0, 1] == 0

    def free_token_1(rows: Tensor) -> Tensor:
        assert rows[:, 1].isneginf().all()
        return torch.where(torch.arange(4) == 1, 100.0, rows)

    assert process_logits(logits, *chain.values(), params, EXACT, grammar, free_token_1)[0, 1] > 0.99


def test_a_grammar_that_allows_one_token_leaves_it_whatever_the_rest() -> None:
    logits, trees, params, _ = random_batch(3)
    only = torch.full((8, 1), 1 << 5, dtype=torch.int32)
    probs = process_logits(logits, *trees.values(), params, EXACT, only)
    assert torch.equal(probs, torch.nn.functional.one_hot(torch.full((8,), 5), 9).double())


@given(seed=st.integers(0, 2**32))
def test_temperature_one_and_top_k_one_put_everything_on_the_greedy_token(seed: int) -> None:
    logits, trees, _, bitmask = random_batch(seed)
    penalised = logits.clone()
    params = params_of(2, 9, frequency_penalty=0.3, top_k=1)
    apply_penalties(penalised, *trees.values(), *params[:6], law=EXACT)
    apply_token_bitmask(penalised, bitmask, torch.arange(8, dtype=torch.int32))
    probs = process_logits(logits, *trees.values(), params, EXACT, bitmask)
    assert probs.argmax(1).tolist() == row_argmax(penalised, NAN_HIGHEST).tolist()
    assert (probs == 1).sum(1).tolist() == [1] * 8


def test_the_custom_processor_comes_before_the_temperature() -> None:
    params = params_of(1, 2, temperature=0.5)
    probs = process_logits(
        torch.zeros((1, 2), dtype=torch.float64),
        *chain_of([0], 2).values(),
        params,
        EXACT,
        custom_logit_processor=lambda rows: rows + torch.tensor([0.0, 1.0]),
    )
    assert float(probs[0, 1]) == pytest.approx(torch.tensor(2.0).sigmoid().item(), abs=2.0**-20)


@given(case=cases(TOP_K), turn=st.integers(0, 3))
def test_total_variation_is_a_distance_from_0_to_1(case: Case, turn: int) -> None:
    probs = in_float64(case).tensors["probs"]
    other = probs.roll(turn, dims=1)
    distance = total_variation(probs, other)
    assert torch.equal(distance, total_variation(other, probs))
    for p, q, total in zip(probs[:10].tolist(), other[:10].tolist(), distance[:10].tolist(), strict=True):
        tells_apart_best = [token for token in range(len(p)) if p[token] > q[token]]
        assert total == sum(p[token] - q[token] for token in tells_apart_best)
    assert torch.equal(distance == 0, (probs == other).all(1))
    assert torch.equal(distance == 1, ((probs > 0) & (other > 0)).sum(1) == 0)
