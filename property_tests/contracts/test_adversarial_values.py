"""Each adversarial value of the harness's list is really drawn: counted over the cases that `check` generates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case
from specsim.contracts.registry import OPS

CASES = 150
Mark = Callable[[Case], bool]


@cache
def cases_of(op: str) -> tuple[Case, ...]:
    return tuple(OPS[op].generate(seeded(0, "adversarial", op, index)) for index in range(CASES))


def _ties(name: str) -> Mark:
    return lambda case: any(len(row.unique()) < row.numel() for row in case.tensors[name].flatten(1))


def _has(name: str, test: Callable[[torch.Tensor], torch.Tensor]) -> Mark:
    return lambda case: bool(test(case.tensors[name]).any())


def _root_coin_beside_a_threshold(ulps: int) -> Mark:
    """The root's uniform draw is the first child's probability, or the float32 before or after it."""

    def drawn(case: Case) -> bool:
        tensors = case.tensors
        child = tensors["retrieve_next_token"][:, 0]
        token = tensors["candidates"].gather(1, child.clamp(min=0)[:, None])
        edge = tensors["target_probs"][:, 0].gather(1, token)[:, 0]
        if ulps:
            edge = torch.nextafter(edge, torch.full_like(edge, 2.0 * ulps))
        return bool(((child >= 0) & (tensors["uniform_samples"][:, 0] == edge)).any())

    return drawn


def _beside_page(offset: int) -> Mark:
    def drawn(case: Case) -> bool:
        page = case.sizes["page_size"]
        return page > 2 and bool(((case.tensors["seq_lens"] - offset) % page == 0).any())

    return drawn


def _accepted(how_many: Callable[[Case], int]) -> Mark:
    return lambda case: bool((case.tensors["accept_lens"] - 1 == how_many(case)).any())


def _nodes_and_width(relation: Callable[[int, int], bool]) -> Mark:
    return lambda case: relation(case.sizes["num_draft_tokens"], case.sizes["accept_width"])


def _behind_a_prompt(case: Case) -> bool:
    return bool(case.sizes["drafts_behind_prompt"])


def _behind_a_window(case: Case) -> bool:
    """A request of which a window needs no token of its first block."""
    t = case.tensors
    behind = t["num_computed_tokens"][t["idx_mapping"].long()] - t["sliding_window_reach"][:, None]
    return bool(((behind >= t["block_sizes"][:, None]) & (t["sliding_window_reach"][:, None] > 0)).any())


def _is_repeated(case: Case) -> bool:
    """A request whose last token occurs before."""
    t = case.tensors
    rows = t["all_token_ids"][t["idx_mapping"].long()].tolist()
    lens = t["total_len"][t["idx_mapping"].long()].tolist()
    return any(length > 1 and row[length - 1] in row[: length - 1] for row, length in zip(rows, lens, strict=True))


def _behind_the_logits(case: Case) -> bool:
    t, stride = case.tensors, case.sizes["mask_stride"]
    request = (t["logits_indices"] // stride).long()
    return bool((t["logits_indices"] % stride >= t["cu_num_logits"].diff()[request]).any())


def _beyond_the_table(case: Case) -> bool:
    ends = case.tensors["prefix_lens"] + case.sizes["num_draft_tokens"]
    return bool((ends > case.sizes["pool_len"]).any())


def _first_impossible(block: int) -> Mark:
    """A row of which as many first tokens are impossible as a kernel sums at once."""
    return lambda case: bool((case.tensors["logits"].flatten(0, -2)[:, :block] == -torch.inf).all(dim=1).any())


def _without_kv(case: Case) -> bool:
    t = case.tensors
    behind = t["valid_from"][t["req_pool_indices"]] > t["prefix_lens"] - case.sizes["window"]
    return bool(case.sizes["has_valid_from"]) and bool((behind & (t["prefix_lens"] > 0)).any())


def _vocab(offset: int) -> Mark:
    powers = {2**k for k in range(2, 20)}
    return lambda case: case.sizes["vocab_size"] - offset in powers


def _slack(case: Case) -> bool:
    """A page table with more columns than the sequences and their drafts fill."""
    used = int(case.tensors["seq_lens"].max()) + case.sizes["topk"] * case.sizes["num_steps"]
    return case.sizes["pool_len"] > used


def _permuted(case: Case) -> bool:
    rows = case.tensors["req_pool_indices"]
    return len(rows) > 1 and bool((rows.diff() < 0).any())


MARKS: dict[str, tuple[str, Mark]] = {
    "score ties": ("organize_draft_results", _ties("scores")),
    "probabilities that tie": ("select_top_k", _ties("topk_p")),
    "logits that tie": ("row_argmax", _ties("logits")),
    "NaN": ("row_argmax", _has("logits", torch.isnan)),
    "infinity": ("row_argmax", _has("logits", torch.isposinf)),
    "minus infinity": ("row_argmax", _has("logits", torch.isneginf)),
    "a uniform draw at a threshold": ("verify_tree_target_only", _root_coin_beside_a_threshold(0)),
    "a uniform draw an ulp after it": ("verify_tree_target_only", _root_coin_beside_a_threshold(1)),
    "a uniform draw an ulp before it": ("verify_tree_target_only", _root_coin_beside_a_threshold(-1)),
    "uniform draw 0": ("verify_tree_target_only", _has("uniform_samples", lambda coins: coins == 0.0)),
    "uniform draw 1 - 2^-24": (
        "verify_tree_target_only",
        _has("uniform_samples", lambda coins: coins == 1.0 - 2.0**-24),
    ),
    "final uniform draw 0": ("verify_tree_target_only", _has("uniform_final", lambda coins: coins == 0.0)),
    "final uniform draw 1 - 2^-24": (
        "verify_tree_target_only",
        _has("uniform_final", lambda coins: coins == 1.0 - 2.0**-24),
    ),
    "a placeholder in a chain": ("verify_chain_rejection", _has("candidates", lambda tokens: tokens == -1)),
    "a placeholder in a block": ("verify_chain_block", _has("candidates", lambda tokens: tokens == -1)),
    "a placeholder in a tree": ("verify_tree_rejection", _has("candidates", lambda tokens: tokens == -1)),
    "a ragged placeholder": ("verify_ragged_rejection", _has("draft_token_ids", lambda tokens: tokens == -1)),
    "a row of NaN": ("sample_recovered_tokens", _has("target_probs", torch.isnan)),
    "a row of NaN in a whole verification": ("verify_ragged_sampled", _has("target_probs", torch.isnan)),
    "a row of NaN of which a draft is rejected": ("verify_ragged_rejection", _has("target_probs", torch.isnan)),
    "a row of NaN in a tree": ("verify_tree_target_only", _has("target_probs", torch.isnan)),
    "a row of NaN in a tree of drawn children": ("verify_tree_rejection", _has("target_probs", torch.isnan)),
    "a row of NaN in a chain": ("verify_chain_rejection", _has("target_probs", torch.isnan)),
    "a greedy placeholder": ("verify_ragged_greedy", _has("draft_token_ids", lambda tokens: tokens == -1)),
    "drafts behind a prompt": ("combine_sampled_and_draft_tokens", _behind_a_prompt),
    "a draft that was not proposed": ("gather_draft_sampled", _behind_a_prompt),
    "a request that is left alone": ("post_update", _has("idx_mapping", lambda rows: rows == -1)),
    "a token without a slot": ("compute_slot_mappings", _has("idx_mapping", lambda rows: rows == -1)),
    "a window that is behind": ("gather_block_tables", _behind_a_window),
    "a run of tokens that occurred before": ("propose_ngrams", _is_repeated),
    "a request without tokens": ("propose_ngrams", _has("total_len", lambda lens: lens == 0)),
    "a draft of which everything is rejected": (
        "prepare_draft_prefill",
        lambda case: bool((case.tensors["num_rejected"] == case.sizes["num_steps"]).any()),
    ),
    "a request that is as long as it may be": (
        "prepare_standalone_prefill",
        lambda case: bool((case.tensors["seq_lens"] == case.sizes["max_model_len"]).any()),
    ),
    "the last of several drafts": (
        "update_draft_inputs",
        lambda case: int(case.tensors["current_step"]) == case.sizes["num_steps"] - 1 > 0,
    ),
    "a block of nobody": ("prepare_block_draft", _has("block_table", lambda blocks: blocks == 0)),
    "candidates of equal scores": (
        "walk_candidates_greedy",
        lambda case: bool((case.tensors["scores"].diff(dim=3) == 0).any()),
    ),
    "candidates of equal sums": (
        "best_candidates",
        lambda case: bool(((case.tensors["logits"] + case.tensors["bias"]).diff(dim=2) == 0).any()),
    ),
    "a distribution that is left alone": ("cache_candidate_logits", _has("idx_mapping", lambda rows: rows == -1)),
    "tokens that are repeated": ("prepare_module_inputs", _has("num_rejected", lambda rejected: rejected > 1)),
    "hidden states that are repeated": ("prepare_module_hidden", _has("num_rejected", lambda rejected: rejected > 1)),
    "a request that keeps nothing": ("cache_module_inputs", _has("idx_mapping", lambda rows: rows == -1)),
    "an entropy at the threshold": (
        "defer_rejections_greedy",
        lambda case: bool((case.tensors["entropy"] == case.tensors["threshold"]).any()),
    ),
    "a wrong draft that cannot follow": ("defer_rejections_greedy", _has("target_logits", torch.isneginf)),
    "a rejection that is put off": (
        "defer_rejections",
        lambda case: bool((OPS["defer_rejections"].expected(case)["uniform_probs"] == 0).any()),
    ),
    "rejected drafts in a block's batch": ("expand_block_inputs", _has("num_rejected", lambda rejected: rejected > 0)),
    "more tokens than a warp has lanes": (
        "shift_draft_inputs",
        lambda case: bool((case.tensors["query_start_loc"].diff() > 33).any()),
    ),
    "a mask behind the rows of logits": ("apply_grammar_bitmask", _behind_the_logits),
    "a chain of which the root alone is verified": ("accept_chain_greedy", _has("verify_lens", lambda lens: lens == 1)),
    "a table that ends before a chain": ("commit_inject_layout", _beyond_the_table),
    "a block beyond the table": ("prepare_draft_block", _beyond_the_table),
    "a score that is NaN": ("walk_candidates", _has("scores", torch.isnan)),
    "draft logits of NaN alone": ("markov_greedy_step", _has("base_logits", lambda logits: logits.isnan().all(dim=1))),
    "a window that begins in the draft": (
        "generate_draft_decode_window_kv_indices",
        lambda case: case.sizes["window"] == 1,
    ),
    "a request shorter than what is repeated": (
        "widened_draft_extend_locs",
        lambda case: bool((case.tensors["seq_lens"] < case.sizes["front"]).any()),
    ),
    "a group of impossible tokens": ("topk_lse", _first_impossible(8192)),
    "candidates beside a block of impossible tokens": ("candidate_log_probs", _first_impossible(8192)),
    "nodes of the same log-probability": (
        "build_best_first_tree",
        lambda case: bool((case.tensors["top_log_probs"].diff(dim=1) == 0).any()),
    ),
    "a window without KV of the draft model": ("draft_window_gather", _without_kv),
    "a request that pads": ("fill_draft_extend_buffers", lambda case: case.sizes["padded_bs"] > case.sizes["bs"]),
    "an impossible draft": ("markov_frequencies", _has("base_logits", torch.isneginf)),
    "a certain draft": ("markov_frequencies", _has("temperatures", lambda temperatures: temperatures == 0)),
    "logits of NaN alone": ("draft_topk1", _has("logits", lambda logits: logits.isnan().all(dim=1))),
    "a vocabulary of a power of two": ("row_argmax", _vocab(0)),
    "one less": ("row_argmax", _vocab(-1)),
    "one more": ("row_argmax", _vocab(1)),
    "a length at a page's boundary": ("assign_draft_cache_locs_contiguous", _beside_page(0)),
    "one before": ("assign_draft_cache_locs_contiguous", _beside_page(-1)),
    "one after": ("assign_draft_cache_locs_contiguous", _beside_page(1)),
    "a table larger than needed": ("assign_draft_cache_locs_contiguous", _slack),
    "rows in no order": ("assign_draft_cache_locs_contiguous", _permuted),
    "no draft accepted": ("verify_commit_outputs", _accepted(lambda _case: 0)),
    "one draft accepted": ("verify_commit_outputs", _accepted(lambda _case: 1)),
    "all that can be accepted": ("verify_commit_outputs", _accepted(lambda case: case.sizes["accept_width"] - 1)),
    "fewer nodes than accept_index is wide": ("verify_commit_outputs", _nodes_and_width(lambda n, w: n < w)),
    "as many": ("verify_commit_outputs", _nodes_and_width(lambda n, w: n == w)),
    "more": ("verify_commit_outputs", _nodes_and_width(lambda n, w: n > w)),
    "rows of padding": ("gather_accept_tokens", lambda case: bool((case.tensors["accept_index"] < 0).all(dim=1).any())),
}


@pytest.mark.parametrize("what", MARKS)
def test_it_is_drawn_again_and_again(what: str) -> None:
    op, mark = MARKS[what]
    assert sum(map(mark, cases_of(op))) >= 3
