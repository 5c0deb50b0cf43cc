"""The cases of logit processing: valid ones reach the corners, and wrong arguments are refused by name."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from specsim.choices.chooser import replayed, seeded
from specsim.contracts import logits as family
from specsim.contracts.contract import Case
from specsim.contracts.logits import TOP_K_ALL, VOCAB_SIZES
from specsim.reference import unchecked
from specsim.reference.logits import EXACT, RELAXED

if TYPE_CHECKING:
    from specsim.contracts.contract import Op

OPS = {op.name: op for op in family.OPS}
ACCUMULATE, PENALTIES, BITMASK = OPS["accumulate_penalties"], OPS["apply_penalties"], OPS["apply_token_bitmask"]
ARGMAX, SOFTMAX = OPS["row_argmax"], OPS["temperature_softmax"]
TOP_K, TOP_P, MIN_P = OPS["top_k_renorm_probs"], OPS["top_p_renorm_probs"], OPS["min_p_renorm_probs"]
INFINITY, NAN = float("inf"), float("nan")

every_op = pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
every_filter = pytest.mark.parametrize("op", [TOP_K, TOP_P, MIN_P], ids=lambda op: op.name)


@cache
def seeded_cases(name: str) -> list[Case]:
    return [OPS[name].generate(seeded(0, name, index)) for index in range(150)]


def changed(case: Case, changes: dict[str, Tensor | int]) -> Case:
    tensors = {**case.tensors, **{name: value for name, value in changes.items() if isinstance(value, Tensor)}}
    return Case({**case.sizes, **{name: value for name, value in changes.items() if isinstance(value, int)}}, tensors)


def allowed_tokens(words: list[int], vocab_size: int) -> list[bool]:
    bits = sum((word % 2**32) << (32 * i) for i, word in enumerate(words))
    return [bits >> token & 1 == 1 for token in range(vocab_size)]


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


@every_op
def test_vocabularies_lie_beside_word_boundaries(op: Op) -> None:
    assert {case.sizes["vocab_size"] for case in seeded_cases(op.name)} == set(VOCAB_SIZES)


def test_paths_repeat_tokens_and_both_distributions_are_drawn() -> None:
    repeats, at_boundary, empty, differ = [], [], [], []
    for case in seeded_cases("apply_penalties"):
        tensors = case.tensors
        for b in range(case.sizes["bs"]):
            paths = [tensors["candidates"][b, 1:][row[1:]].tolist() for row in tensors["tree_mask"][b]]
            repeats.append(any(len(set(path)) < len(path) for path in paths))
            depths = {int(tensors["output_lens"][b]) + len(path) for path in paths}
            at_boundary.append(int(tensors["min_new_tokens"][b]) in depths)
            empty.append(int(tensors["output_lens"][b]) == 0)
        exact, relaxed = (PENALTIES.expected(changed(case, {"law": law}))["logits"] for law in (EXACT, RELAXED))
        differ.append(not torch.equal(exact, relaxed))
    assert min(map(share, (repeats, at_boundary, empty, differ))) > 0.15
    assert {case.sizes["law"] for case in seeded_cases("apply_penalties")} == {EXACT, RELAXED}


def test_masks_allow_all_nothing_and_one_token_and_forbid_nan() -> None:
    counts: Counter[str] = Counter()
    for case in seeded_cases("apply_token_bitmask"):
        vocab_size, rows = case.sizes["vocab_size"], case.tensors["logits"]
        masked = set(case.tensors["indices"].tolist())
        counts["no row"] += not masked
        counts["some rows"] += 0 < len(masked) < len(rows)
        counts["NaN"] += bool(rows.isnan().any())
        counts["inf"] += bool((rows == INFINITY).any())
        counts["highest bit"] += bool((case.tensors["bitmask"] < 0).any())
        for row in masked:
            allowed = sum(allowed_tokens(case.tensors["bitmask"][row].tolist(), vocab_size))
            counts["all"] += allowed == vocab_size
            counts["one"] += allowed == 1
            counts["nothing"] += allowed == 0
        assert not bool(BITMASK.expected(case)["logits"].isnan().any())
    assert min(counts.values()) >= 10, counts
    assert len(counts) == 8


def test_rows_for_the_greedy_token_have_ties_nan_and_infinities() -> None:
    drawn = [case.tensors["logits"] for case in seeded_cases("row_argmax")[:40]]
    rows = torch.cat([torch.nn.functional.pad(r, (0, 4097 - r.shape[1]), value=-INFINITY) for r in drawn])
    highest = (rows == rows.nan_to_num(nan=-INFINITY, posinf=INFINITY).amax(1, keepdim=True)).sum(1)
    assert int((highest == 2).sum()) >= 20
    assert int(rows.isnan().any(1).sum()) >= 50
    assert int((rows == INFINITY).any(1).sum()) >= 50


@every_filter
def test_limits_lie_on_and_beside_the_edges(op: Op) -> None:
    name = op.args[1].name
    limits = Counter(value for case in seeded_cases(op.name) for value in case.tensors[name].tolist())
    tied = [
        bool((row[row > 0].unique().numel()) < (row > 0).sum())
        for case in seeded_cases(op.name)
        for row in case.tensors["probs"]
    ]
    assert share(tied) > 0.2
    if op is TOP_K:
        assert {1, 2, 3, TOP_K_ALL, *VOCAB_SIZES, *(size + 1 for size in VOCAB_SIZES)} <= set(limits)
        return
    edges = {value for value in limits if value * 64 == int(value * 64)}
    ulps = [value for value in limits if value not in edges and abs(value * 64 - round(value * 64)) < 1e-4]
    assert len(edges) >= 4
    assert len(ulps) >= 6
    assert (1.0 if op is TOP_P else 0.0) in edges


@pytest.mark.parametrize(
    ("op", "changes", "message"),
    [
        (ACCUMULATE, {"accept_lens": torch.zeros(1, dtype=torch.int32)}, "accept_lens.* is 0; allowed: 1 to 2"),
        (
            ACCUMULATE,
            {"accept_tokens": torch.full((1, 2), 4, dtype=torch.int32)},
            "accept_tokens.* is 4; allowed: 0 to 3",
        ),
        (ACCUMULATE, {"law": 2}, "law is 2; allowed: EXACT"),
        (PENALTIES, {"law": -1}, "law is -1; allowed: EXACT"),
        (PENALTIES, {"logits": torch.full((2, 4), NAN)}, "logits.* is nan; allowed: finite or -inf"),
        (PENALTIES, {"logits": torch.full((3, 4), 0.0)}, r"logits has shape \[3, 4\]"),
        (PENALTIES, {"repetition_penalty": torch.zeros(1)}, "repetition_penalty.* is 0.0; allowed: above 0"),
        (PENALTIES, {"frequency_penalty": torch.zeros(1).double()}, "frequency_penalty has dtype torch.float64"),
        (PENALTIES, {"logit_bias": torch.full((1, 4), INFINITY)}, "logit_bias.* is inf; allowed: finite or -inf"),
        (PENALTIES, {"stop_token_ids": torch.full((1, 3), 5)}, "stop_token_ids.* is 5; allowed: 0 to 4"),
        (PENALTIES, {"candidates": torch.full((1, 2), 4)}, "candidates.* is 4; allowed: 0 to 3"),
        (
            PENALTIES,
            {"tree_mask": torch.ones((1, 2, 2)) > 0},
            r"tree_mask\[0, 0, 1\] is True; allowed: True at the root",
        ),
        (PENALTIES, {"tree_mask": torch.zeros((1, 2, 2)) > 0}, r"tree_mask\[0, 0, 0\] is False"),
        (BITMASK, {"indices": torch.tensor([2], dtype=torch.int32)}, "indices.* is 2; allowed: 0 to 1"),
        (BITMASK, {"bitmask": torch.zeros((2, 2), dtype=torch.int32)}, "bitmask has shape"),
        (ARGMAX, {"nan_policy": 2}, "nan_policy is 2; allowed: NAN_HIGHEST"),
        (ARGMAX, {"logits": torch.zeros((2, 0))}, "vocab_size .* is 0; allowed: 1 or more"),
        (ARGMAX, {"logits": torch.zeros((2, 4), dtype=torch.float16)}, "logits has dtype torch.float16"),
        (SOFTMAX, {"temperature": torch.zeros(2)}, "temperature.* is 0.0; allowed: finite, above 0"),
        (SOFTMAX, {"logits": torch.full((2, 4), -INFINITY)}, "highest logit .* is -inf; allowed: finite"),
        (TOP_K, {"top_k": torch.zeros(2, dtype=torch.int32)}, "top_k.* is 0; allowed: 1 or more"),
        (TOP_K, {"probs": torch.zeros((2, 4))}, "sum of the row of probs .* is 0.0; allowed: above 0"),
        (TOP_P, {"top_p": torch.zeros(2)}, "top_p.* is 0.0; allowed: above 0, at most 1"),
        (TOP_P, {"probs": torch.full((2, 4), NAN)}, "probs.* is nan; allowed: finite, 0 or more"),
        (MIN_P, {"min_p": torch.full((2,), 1.5)}, "min_p.* is 1.5; allowed: 0 to 1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(op: Op, changes: dict[str, Tensor | int], message: str) -> None:
    case = op.generate(replayed(()))
    with pytest.raises(ValueError, match=message):
        op.expected(changed(case, changes))


@every_op
def test_nothing_is_checked_when_validation_is_off(op: Op) -> None:
    for case in seeded_cases(op.name)[:5]:
        with unchecked():
            results = op.expected(case)
        for name, tensor in op.expected(case).items():
            torch.testing.assert_close(results[name], tensor, rtol=0, atol=0, equal_nan=True)
