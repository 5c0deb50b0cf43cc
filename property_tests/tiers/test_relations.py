"""Relations between two runs: every implementation keeps to them, the reference included, and one that does not is
found without asking what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from property_tests.naive import NAIVE
from specsim.choices.chooser import replayed
from specsim.contracts.contract import Case, Op
from specsim.contracts.provider import MappingProvider, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.kernels import provider as kernels
from specsim.reference import verify_tree_greedy
from specsim.tiers.ops.relations import LABELS, related_cases
from specsim.tiers.ops.run import LaunchHere, relation_broken_by, run_case
from specsim.tiers.ops.suite import chooser_of

# The interpreter takes a minute for all; `specsim check --only ops` checks all of them so.
QUICK_KERNELS = ("verify_tree_greedy", "fill_bonus_tokens", "get_last_loc", "verify_chain_rejection", "select_top_k")
# How many cases of each operation, with the related ones.
PROVIDERS: dict[str, tuple[int, Callable[[], list[Subject]]]] = {
    "reference": (2, lambda: MappingProvider("reference", REFERENCE).subjects()[0]),
    "naive": (1, lambda: MappingProvider("naive", NAIVE).subjects()[0]),
    "triton": (1, lambda: [subject for subject in kernels().subjects()[0] if subject.op in QUICK_KERNELS]),
}
# Operations of which every argument is ragged, or whose slots are places in what moves.
WITHOUT = {"alloc_extend", "alloc_decode", "assign_hidden_states_pool", "assign_new_state"}
WITHOUT |= {"stash_append_boundary_state", "apply_token_bitmask", "move_kv"}
# Drafts in one flat row, whose tokens are places in distributions.
WITHOUT |= {"verify_ragged_rejection", "sample_recovered_tokens", "verify_ragged_sampled", "prepare_inputs_padded"}
WITHOUT |= {"expand_to_drafts", "expand_draft_inputs", "expand_block_inputs", "defer_rejections"}
WITHOUT |= {"defer_rejections_greedy"}
# Counts and positions of a ragged batch, and tokens that are counted by their numbers.
WITHOUT |= {"expand_idx_mapping", "prepare_pos_seq_lens", "get_num_sampled_and_rejected", "post_update"}
WITHOUT |= {"post_update_num_computed_tokens", "compute_slot_mappings"}
# Masks of ragged rows, and blocks of a ragged batch with masks between its tokens.
WITHOUT |= {"apply_grammar_bitmask", "prepare_block_draft", "prepare_module_hidden"}
# Tokens that are places in distributions of rows of state.
WITHOUT |= {"cache_candidate_logits"}
# Sums over a batch, what is fitted to them, and predictions of rows of state.
WITHOUT |= {"accumulate_acceptance", "refit_acceptance", "predict_acceptance"}
# Weights of the vocabulary.
WITHOUT |= {"markov_greedy_step"}
# Buffers of a graph, which has more requests than the batch.
WITHOUT |= {"fill_draft_extend_buffers"}
# Rows that are shared out among a batch, or packed.
WITHOUT |= {"schedule_verify_lens", "pad_verify_lens", "verify_indptr", "scatter_compact_to_strided"}


def subject_of(call: Callable[..., Any], op: str) -> Subject:
    (subject,) = MappingProvider("mine", {op: call}).subjects()[0]
    return subject


def cases_of(op: Op, subject: Subject, count: int) -> list[Case]:
    drawn = [op.generate(chooser_of(0, subject, index)) for index in range(3 * count)]
    return [case for case in drawn if subject.accepts(case.sizes)][:count]


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_every_implementation_keeps_to_the_relations_on_cases_that_are_valid(name: str) -> None:
    """The reference checks its arguments: those of the related cases too."""
    count, subjects = PROVIDERS[name]
    for subject in subjects():
        op = OPS[subject.op]
        for case in cases_of(op, subject, count):
            assert relation_broken_by(op, subject, case, LaunchHere()) is None, (subject.op, case.sizes)


def test_operations_have_a_relation_or_say_why_not() -> None:
    def has_one(op: Op) -> bool:
        cases = cases_of(op, subject_of(op.reference, op.name), 6)
        return any(True for case in cases for _ in related_cases(op, case))

    assert {name for name, op in OPS.items() if not has_one(op)} == WITHOUT
    assert LABELS.keys() <= OPS.keys()


def of_the_first(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> Tensor:
    """Every request ends where the first does."""
    at = accept_index.gather(1, (accept_lens[:1] - 1).long().expand(len(accept_lens))[:, None])
    return predict[at[:, 0].long()]


def by_token(**arguments: Any) -> Any:
    """Low tokens are never accepted."""
    changed = torch.where(arguments["candidates"] < 2**20, -5, arguments["candidates"])
    return verify_tree_greedy(**{**arguments, "candidates": changed})


@pytest.mark.parametrize(
    ("op", "wrong", "what"),
    [("fill_bonus_tokens", of_the_first, "order"), ("verify_tree_greedy", by_token, "names")],
)
def test_what_breaks_a_relation_is_found_without_a_reference(op: str, wrong: Callable[..., Any], what: str) -> None:
    subject = subject_of(wrong, op)
    found = [relation_broken_by(OPS[op], subject, case, LaunchHere()) for case in cases_of(OPS[op], subject, 16)]
    assert any(difference is not None and what in difference.what for difference in found)


def test_a_relation_is_checked_where_it_is_asked_for_and_names_its_rule() -> None:
    """Right on the case itself, and wrong on the related one."""
    op = OPS["fill_bonus_tokens"]
    case = next(case for case in cases_of(op, subject_of(op.reference, op.name), 40) if case.sizes["bs"] > 1)
    first = case.tensors["accept_lens"].clone()

    def wrong(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> Tensor:
        at = accept_index.gather(1, (accept_lens - 1).long()[:, None])[:, 0].long()
        return predict[at] + (0 if torch.equal(accept_lens, first) else 1)

    subject = subject_of(wrong, op.name)
    assert run_case(op, subject, case).violations == ()
    (violation,) = run_case(op, subject, case, related=True).violations
    assert violation.rule.id == "O10"
    assert "last request" in violation.title or "order" in violation.title


def test_the_simplest_case_has_no_relation_of_requests() -> None:
    case = OPS["fill_bonus_tokens"].generate(replayed(()))
    assert [each.what for each in related_cases(OPS["fill_bonus_tokens"], case)] == ["other names for tokens and slots"]
