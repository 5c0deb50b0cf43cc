"""The mutants of operations: mistakes that shipped code has made, put into specsim's own kernels and reference.

Each is one line of one function. A mutant of a kernel is judged against the reference; one of the reference is judged
as the reference, with the slow twins (`loops`) as the implementation. What no value shows, a race or an overflow of an
offset, is the sanitizer's to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specsim.errors import UsageError

FoundBy = Literal["cases", "race-within", "masked-lanes", "int32-overflow"]

ITEMS: dict[int, str] = {
    1: "the row stride of accept_index is taken to be num_draft_tokens",
    2: "a coin at the threshold accepts: < becomes <=",
    3: "the mass of the siblings before is not reset when the walk goes on",
    4: "the coin of the parent, or of the root, decides at every node",
    5: "paths are not padded with -1",
    6: "off by one in accept_lens",
    7: "the draft law is not taken off what is left",
    8: "laws are not updated from sibling to sibling",
    9: "siblings are linked in another order",
    10: "no barrier between the reads and the writes of a move in place",
    11: "masked-off lanes are not given a value",
    12: "the first element of a row is computed in int32",
    13: "of equal scores the last one wins",
    14: "the draft law is taken to be one-hot while drafts were sampled",
    15: "what is left in block verification is of the unscaled law",
    16: "every coin is 0",
    17: "a -1 is used as an index",
    18: "an input is changed in place and read again",
    19: "every request uses the map of the first",
    20: "a preallocated buffer lacks a factor of topk",
}
_TORCH_READS_FIRST = "torch reads all of an indexed assignment before it writes"
NOT_EXPRESSED: dict[tuple[int, str], str] = {
    (10, "reference"): _TORCH_READS_FIRST,
    (11, "reference"): "torch has no masked lanes",
    (12, "reference"): "torch computes offsets itself, in 64 bits",
}


@dataclass(frozen=True, slots=True)
class OperatorMutant:
    """One line of a kernel or of the reference.

    `item`     key of ITEMS: which mistake it is
    `side`     whose line it is
    `op`       the operation that is judged
    `function` where the line is, by the function's name
    `line`     the line without its indentation, once in that function; it becomes `becomes`
    `by`       "cases" when a wrong value shows it, else the kind of flaw that the sanitizer has to report
    """

    item: int
    side: Literal["kernel", "reference"]
    op: str
    module: str
    function: str
    line: str
    becomes: str
    by: FoundBy = "cases"

    @property
    def id(self) -> str:
        return f"{self.item:02d}-{self.side}"


def changed_source(mutant: OperatorMutant, source: str) -> str:
    """`source` with the mutant's line replaced. UsageError when the function has it not exactly once."""
    lines = source.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(f"def {mutant.function}(")]
    if len(starts) == 1:
        start = starts[0]
        end = next(
            (i for i in range(start + 1, len(lines)) if lines[i].startswith(("def ", "@", "class "))), len(lines)
        )
        at = [i for i in range(start, end) if lines[i].strip() == mutant.line]
        if len(at) == 1:
            lines[at[0]] = lines[at[0]].replace(mutant.line, mutant.becomes)
            return "".join(lines)
        found = f"{mutant.line!r} is in {mutant.function} of {mutant.module} {len(at)} times"
    else:
        found = f"{mutant.module} has {len(starts)} functions {mutant.function}"
    raise UsageError(
        f"mutant {mutant.id} does not apply: {found}",
        "give the line in specsim.selfcheck.operator_mutants as it is now",
    )


def find(mutant_id: str) -> OperatorMutant:
    """The mutant of that id."""
    for mutant in MUTANTS:
        if mutant.id == mutant_id:
            return mutant
    ids = ", ".join(mutant.id for mutant in MUTANTS)
    raise UsageError(f"there is no mutant {mutant_id!r} of operations", f"choose one of {ids}")


_K = "specsim.kernels."
_R = "specsim.reference."

MUTANTS: tuple[OperatorMutant, ...] = (
    OperatorMutant(
        1,
        "kernel",
        "fill_bonus_tokens",
        _K + "verify",
        "fill_bonus_tokens",
        "ACCEPT_WIDTH=accept_width,",
        "ACCEPT_WIDTH=predict.shape[0] // bs,",
    ),
    OperatorMutant(
        1,
        "reference",
        "fill_bonus_tokens",
        _R + "verify",
        "fill_bonus_tokens",
        "return predict[last[:, 0]]",
        "return predict[accept_index.flatten()[(torch.arange(len(last)) * (len(predict) // len(last)) + accept_lens"
        " - 1).clamp(max=accept_index.numel() - 1)]]",
    ),
    OperatorMutant(
        2,
        "kernel",
        "verify_tree_target_only",
        _K + "sampling",
        "_verify_tree_target_only_kernel",
        "is_accepted = (prob > 0) & ((coin < tl.div_rn(mass, acc)) | (prob >= single))",
        "is_accepted = (prob > 0) & ((coin <= tl.div_rn(mass, acc)) | (prob >= single))",
    ),
    OperatorMutant(
        2,
        "reference",
        "verify_tree_target_only",
        _R + "sampling",
        "verify_tree_target_only",
        "accepts = (prob > 0) & ((coin < mass / acc) | (prob >= single))",
        "accepts = (prob > 0) & ((coin <= mass / acc) | (prob >= single))",
    ),
    OperatorMutant(
        3,
        "kernel",
        "verify_tree_target_only",
        _K + "sampling",
        "_verify_tree_target_only_kernel",
        "mass = tl.where(is_accepted, 0.0, mass)",
        "mass = tl.where(is_accepted, mass, mass)",
    ),
    OperatorMutant(
        3,
        "reference",
        "verify_tree_target_only",
        _R + "sampling",
        "verify_tree_target_only",
        "mass = torch.zeros_like(coin)  # [bs]",
        "mass = torch.zeros_like(coin) if step == 0 else mass",
    ),
    OperatorMutant(
        4,
        "kernel",
        "verify_tree_target_only",
        _K + "sampling",
        "_verify_tree_target_only_kernel",
        "coin = tl.where(is_accepted, child_coin, coin)",
        "coin = tl.where(is_accepted, coin, coin)",
    ),
    OperatorMutant(
        4,
        "reference",
        "verify_tree_target_only",
        _R + "sampling",
        "verify_tree_target_only",
        "coin = uniform_samples[request, node]  # [bs]",
        "coin = uniform_samples[:, 0]",
    ),
    OperatorMutant(
        5,
        "kernel",
        "verify_chain_rejection",
        _K + "verify_chain",
        "_verify_chain_kernel",
        "b_path = tl.where(m_path, (i_first_node + o_w).to(tl.int32), -1)",
        "b_path = (i_first_node + o_w).to(tl.int32)",
    ),
    OperatorMutant(
        5,
        "reference",
        "verify_chain_rejection",
        _R + "sampling",
        "_verified_chain",
        "accept_index=torch.where(on_path, number, -1).to(torch.int32),",
        "accept_index=number.to(torch.int32),",
    ),
    OperatorMutant(
        6,
        "kernel",
        "verify_commit_outputs",
        _K + "accepted",
        "_verify_commit_outputs_kernel",
        "tl.store(p_new_seq_lens + o_b, b_seq_len + b_accept_len, mask=m_b)",
        "tl.store(p_new_seq_lens + o_b, b_seq_len + b_accept_len + 1, mask=m_b)",
    ),
    OperatorMutant(
        6,
        "reference",
        "create_extend_after_decode",
        _R + "accepted",
        "create_extend_after_decode",
        "positions = (seq_lens - accept_lens)[request] + within",
        "positions = (seq_lens - accept_lens - 1)[request] + within",
    ),
    OperatorMutant(
        7,
        "kernel",
        "verify_chain_rejection",
        _K + "verify_chain",
        "residual",
        "return positive(scale * b_p - b_q)",
        "return positive(scale * b_p - b_q * 0.0)",
    ),
    OperatorMutant(
        7,
        "reference",
        "verify_chain_rejection",
        _R + "sampling",
        "verify_chain_rejection",
        "residual = (target_probs[:, :num_steps] - draft_probs).clamp(min=0)  # [bs, S, V]",
        "residual = target_probs[:, :num_steps]",
    ),
    OperatorMutant(
        8,
        "kernel",
        "verify_tree_rejection",
        _K + "sampling",
        "_verify_tree_rejection_kernel",
        "num_drawn += 1",
        "num_drawn += 0",
    ),
    OperatorMutant(
        8,
        "reference",
        "verify_tree_rejection",
        _R + "sampling",
        "verify_tree_rejection",
        "law, proposal = torch.where(drawn, residual, law), torch.where(drawn, without, proposal)",
        "law, proposal = law, proposal",
    ),
    OperatorMutant(
        9,
        "kernel",
        "reconstruct_tree",
        _K + "masks",
        "links_of",
        "m_sibling = (b_other[None, :] == b_parent[:, None]) & m_other[None, :] & (o_c[None, :] > o_n[:, None])",
        "m_sibling = (b_other[None, :] == b_parent[:, None]) & m_other[None, :] & (o_c[None, :] < o_n[:, None])",
    ),
    OperatorMutant(
        9,
        "reference",
        "reconstruct_tree",
        _R + "masks",
        "links_of",
        "is_sibling = (parent[:, None, :] == parent[:, :, None]) & (node > node[:, None])"
        "  # [bs, ndt, ndt]: a later one",
        "is_sibling = (parent[:, None, :] == parent[:, :, None]) & (node < node[:, None])",
    ),
    OperatorMutant(
        10,
        "kernel",
        "rotate_input_ids",
        _K + "multi_layer",
        "_rotate_input_ids_kernel",
        "tl.debug_barrier()",
        "pass",
        by="race-within",
    ),
    OperatorMutant(
        11,
        "kernel",
        "get_target_cache_loc",
        _K + "ragged",
        "sum_before",
        "b_len = tl.load(p_lens + o_b, mask=o_b < i_b, other=-EXTRA).to(tl.int64)",
        "b_len = tl.load(p_lens + o_b, mask=o_b < i_b).to(tl.int64)",
        by="masked-lanes",
    ),
    OperatorMutant(
        12,
        "kernel",
        "row_argmax",
        _K + "logits",
        "_row_argmax_kernel",
        "i_row = tl.program_id(0).to(tl.int64)",
        "i_row = tl.program_id(0)",
        by="int32-overflow",
    ),
    OperatorMutant(
        13,
        "kernel",
        "row_argmax",
        _K + "argmax",
        "best_of_chunk",
        "i_word = tl.max((b_key << 31) | (0x7FFFFFFF - b_at).to(tl.int64), axis=0)",
        "i_word = tl.max((b_key << 31) | b_at.to(tl.int64), axis=0) ^ 0x7FFFFFFF",
    ),
    OperatorMutant(
        13,
        "reference",
        "select_top_k",
        _R + "drafting",
        "_best",
        "return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]",
        "return scores.shape[1] - 1 - scores.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :count]",
    ),
    OperatorMutant(
        14,
        "kernel",
        "verify_chain_rejection",
        _K + "verify_chain",
        "_accepted_by_token",
        "is_accepted = (tl.load(p_coin + i_accepted) * q < p) & (q > 0)",
        "is_accepted = (tl.load(p_coin + i_accepted) < p) & (q > 0)",
    ),
    OperatorMutant(
        14,
        "reference",
        "verify_chain_rejection",
        _R + "sampling",
        "verify_chain_rejection",
        "accepts = (uniform_samples * q < p) & (q > 0)  # [bs, S]",
        "accepts = (uniform_samples < p) & (q > 0)",
    ),
    OperatorMutant(
        15,
        "kernel",
        "verify_chain_block",
        _K + "verify_chain",
        "_verify_chain_kernel",
        "scale = tl.where(i_accepted < NUM_STEPS, scale, 1.0)",
        "scale = tl.where(i_accepted < NUM_STEPS, 1.0, 1.0)",
    ),
    OperatorMutant(
        15,
        "reference",
        "verify_chain_block",
        _R + "sampling",
        "verify_chain_block",
        "laws = torch.cat([residual, target_probs[:, num_steps:]], dim=1)  # [bs, S + 1, V]",
        "laws = torch.cat([(target_probs[:, :num_steps] - draft_probs).clamp(min=0), target_probs[:, num_steps:]], 1)",
    ),
    OperatorMutant(
        16,
        "kernel",
        "verify_tree_rejection",
        _K + "sampling",
        "_verify_tree_rejection_kernel",
        "coin = tl.load(p_uniform_samples + o_child)",
        "coin = tl.load(p_uniform_samples + o_child) * 0.0",
    ),
    OperatorMutant(
        16,
        "reference",
        "verify_tree_rejection",
        _R + "sampling",
        "_invert_cdf",
        "above = positive & (cdf > coin[:, None] * cdf[:, -1:])",
        "above = positive & (cdf > 0)",
    ),
    OperatorMutant(
        17,
        "kernel",
        "gather_accept_tokens",
        _K + "accepted",
        "_gather_accept_tokens_kernel",
        "b_token = tl.load(p_predicts + b_node, mask=(b_node >= 0) & (b_node < num_nodes), other=-1)",
        "b_token = tl.load(p_predicts + b_node, mask=b_node < num_nodes, other=-1)",
    ),
    OperatorMutant(
        17,
        "reference",
        "gather_accept_tokens",
        _R + "accepted",
        "gather_accept_tokens",
        "output_token_ids[accept_index >= 0] = predicts[accept_index[accept_index >= 0]]",
        "output_token_ids[:] = predicts[accept_index]",
    ),
    OperatorMutant(
        18,
        "kernel",
        "select_top_k",
        _K + "drafting",
        "_select_top_k_kernel",
        "b_rank = tl.zeros([BLOCK_T], dtype=tl.int32)",
        "b_rank = tl.zeros([BLOCK_T], dtype=tl.int32); tl.store(p_scores + i_b * TOPK + o_t, b_score, mask=o_t < TOPK)",
    ),
    OperatorMutant(
        18,
        "reference",
        "verify_tree_target_only",
        _R + "sampling",
        "verify_tree_target_only",
        "law = target_probs[:, 0].clone()  # [bs, V]: what is left of the law at `node`",
        "law = target_probs[:, 0]",
    ),
    OperatorMutant(
        19,
        "kernel",
        "get_last_loc",
        _K + "alloc",
        "_get_last_loc_kernel",
        "b_row = tl.load(p_req_pool_indices + o_b, mask=m_b, other=0)",
        "b_row = tl.load(p_req_pool_indices + o_b * 0, mask=m_b, other=0)",
    ),
    OperatorMutant(
        19,
        "reference",
        "assign_draft_cache_locs_contiguous",
        _R + "cache_locs",
        "assign_draft_cache_locs_contiguous",
        "return req_to_token[req_pool_indices[:, None], column].to(torch.int64).flatten()",
        "return req_to_token[req_pool_indices[:1, None], column].to(torch.int64).flatten()",
    ),
    OperatorMutant(
        20,
        "kernel",
        "generate_draft_decode_kv_indices",
        _K + "kv",
        "generate_draft_decode_kv_indices",
        "kv_indices.shape[1],",
        "kv_indices.shape[1] // topk,",
    ),
    OperatorMutant(
        20,
        "reference",
        "generate_draft_decode_kv_indices",
        _R + "kv",
        "generate_draft_decode_kv_indices",
        "kv_indices = torch.zeros(num_steps, topk * (int(seq_lens.sum()) + bs * num_steps), dtype=torch.int64,"
        " device=device)",
        "kv_indices = torch.zeros(num_steps, int(seq_lens.sum()) + bs * num_steps, dtype=torch.int64, device=device)",
    ),
)
